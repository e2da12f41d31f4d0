"""Micro-batches of an update in smaller pieces, where a full memory ends one.

The loss of a micro-batch is a mean over its sequences of what each gives alone, or a sum over them
divided by a number that the whole batch has. The gradients of its pieces then add up to its own to
rounding, each counted for its share of the sequences or in full. Losses that divide by the tokens
of the micro-batch are not such, nor are terms of entropy or of experts, which are means over all
its tokens.
"""

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor

from isentrope.checkpoint.record.token_record import TokenRecorder
from isentrope.system.memory import give_back, is_lack_of_memory
from isentrope.system.processes import world_size
from isentrope.training.batch_trainer import BatchTrainer

if TYPE_CHECKING:
    _Base = BatchTrainer
else:
    _Base = object

_log = logging.getLogger("isentrope")

MEANS_OF_SEQUENCES = ("grpo", "dr_grpo", "sapo", "luspo")
"""Losses of TRL that divide by the number of sequences in a micro-batch."""

SUMS_OF_SEQUENCES = ("dapo", "cispo", "vespo")
"""Losses of TRL that divide by a number of tokens of the whole batch."""


class SmallerPieces(_Base):
    """A trainer that runs a micro-batch again in halves where the memory is full.

    Attributes:
        recorder: Records the pieces.
    """

    recorder: TokenRecorder
    _scored: tuple[Tensor, Tensor] | None
    _rows_at_once: int | None = None
    _piece: dict[str, Any] | None = None
    _share: float = 1.0

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One micro-batch, forward and backward, in as few pieces as the memory holds."""
        model.train()
        batch = self._prepare_inputs(inputs)
        rows = len(batch["completion_ids"])
        at_once = self._rows_at_once or rows
        open_pieces = [range(k, min(k + at_once, rows)) for k in range(0, rows, at_once)]
        step = self._step
        loss: Any = 0.0
        while open_pieces:
            piece = open_pieces[0]
            pieces_recorded = len(self.recorder)
            gradients = self._gradients()
            self._step = step  # which TRL counts in each call
            self._piece = _rows_of(batch, piece, rows)
            self._share = len(piece) / rows if self.loss_type in MEANS_OF_SEQUENCES else 1.0
            try:
                loss = loss + super().training_step(model, inputs, num_items_in_batch)
                del open_pieces[0]
                continue
            except (RuntimeError, MemoryError) as error:
                may_halve = (
                    is_lack_of_memory(error) and len(piece) > 1 and self._is_exact_in_pieces()
                )
                if not may_halve or not self._take_back(gradients):
                    raise
            finally:
                self._piece = None
                self._share = 1.0
            # outside of the handler, which keeps the tensors alive
            self._scored = None
            self.recorder.keep(pieces_recorded)
            give_back()
            self._rows_at_once = len(piece) // 2
            _log.warning(
                "Memory is short: %d sequences per backward pass from here on instead of %d "
                "(training.micro_batch).",
                *(self._rows_at_once, len(piece)),
            )
            at_once = self._rows_at_once
            first = piece.start
            open_pieces = [range(k, min(k + at_once, rows)) for k in range(first, rows, at_once)]
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self._piece is not None:
            return self._piece
        return super()._prepare_inputs(generation_batch)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        return loss if self._share == 1 else loss * self._share

    def _is_exact_in_pieces(self) -> bool:
        return (
            self.loss_type in MEANS_OF_SEQUENCES + SUMS_OF_SEQUENCES
            and self.run_control is None
            and not self._entropy_bonus_enabled
            and not self.aux_loss_enabled
            and self.top_entropy_quantile == 1
            and not self.args.use_liger_kernel
            and world_size() == 1
            and not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        )

    def _gradients(self) -> list[tuple[Tensor | None, int]]:
        """Each parameter's gradient, and how often it was changed in place."""
        gradients = [p.grad for p in self.model.parameters()]
        return [(g, 0 if g is None else g._version) for g in gradients]

    def _take_back(self, gradients: list[tuple[Tensor | None, int]]) -> bool:
        """Undo what a failed piece added to the gradients; False where that is not possible."""
        parameters = list(self.model.parameters())
        for parameter, (before, version) in zip(parameters, gradients, strict=True):
            if before is not None and (parameter.grad is not before or before._version != version):
                return False
        for parameter, (before, _) in zip(parameters, gradients, strict=True):
            parameter.grad = before
        return True


def _rows_of(batch: dict[str, Any], piece: range, rows: int) -> dict[str, Any]:
    """A piece of a micro-batch; what is no column of its sequences stays."""
    return {
        name: column[piece.start : piece.stop]
        if getattr(column, "ndim", 0) and len(column) == rows
        else column
        for name, column in batch.items()
    }
