"""Recording the step of any trainer: its tokens, and c = −∂loss/∂s, d = −∂loss/∂H of each.

A loss that depends on the model through log-probabilities s and entropies H alone has the gradient
−Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik) for any form of the loss; `token_record` computes c and d. That sum
is compared with the gradient of the optimizer, first with d = 0 and then, where that does not
replay it, with both. The two differ where the loss is more than a function of s and H (a router's
loss) or the forward pass is not the policy's (dropout, packed sequences): then the record says that
it does not replay, and holds no weights.

checkpoint-N/next_update/rollouts.parquet    ids, token weights, entropy weights and advantages
                                             where there are any
checkpoint-N/next_update/held_out.jsonl      the prompts that the run does not train on, if any
checkpoint-N/next_update/update.json         step, rate, norms, temperature, replayable, its error
"""

from collections.abc import Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.checkpoint.files import NEXT_UPDATE
from isentrope.checkpoint.record.contract import optimizer_names, write_names
from isentrope.checkpoint.record.held_out import held_out_lines
from isentrope.checkpoint.record.next_update import (
    precision_of,
    replay_error,
    replay_tolerance,
    write_next_update,
)
from isentrope.checkpoint.record.observing import bare_model, evaluating
from isentrope.checkpoint.record.token_record import ForwardPass, sequences_of
from isentrope.models.architecture import head_of, text_config
from isentrope.nouns.rollout_columns import numbered
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import texts_of
from isentrope.sampling.prompt import Prompt, name_prompts
from isentrope.system.log import log
from isentrope.system.processes import gather, rank, together


class StepRecorder:
    """Records the steps that a trainer takes from its checkpoints.

    Attributes:
        trainer: A transformers Trainer.
        held_out: Prompts that it does not train on, kept beside each record.
    """

    def __init__(self, trainer: Any, held_out: Sequence[Prompt] = ()) -> None:
        self.trainer = trainer
        self.held_out = held_out
        self._held_out_lines: list[str] = []
        self._pieces: list[ForwardPass] = []
        self._rows: list[tuple[Rollouts, Rollouts]] = []
        self._inputs: Any = None
        self._rest: tuple[Iterator[Any], Iterator[Any]] | None = None  # not taken of them yet
        self._hook: Any = None
        self._checkpoint: Path | None = None
        self._record: tuple[Rollouts, dict[str, Any]] | None = None
        self._failure: Exception | None = None
        self._is_over = False
        plain = trainer.compute_loss

        @wraps(plain)
        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._inputs = inputs if self._hook else None
            self._rest = None
            return plain(model, inputs, *args, **kwargs)

        trainer.compute_loss = compute_loss

    @property
    def _model(self) -> Any:
        return bare_model(self.trainer.model)

    def begin(self) -> None:
        """Start to record if the step starts from a checkpoint without a record."""
        self.stop()
        step = self.trainer.state.global_step
        checkpoint = Path(self.trainer.args.output_dir) / f"checkpoint-{step}"
        begins = checkpoint.is_dir() and not (checkpoint / NEXT_UPDATE).exists()
        if not self._is_over and gather(begins)[0]:
            self._checkpoint = checkpoint
            lm = _causal_lm(self._model)
            # the text part of a multimodal model is given embeddings, the whole of it tokens
            reader = lm.get_decoder() if text_config(lm) is lm.config else lm.base_model
            self._hook = reader.register_forward_hook(self._watch, with_kwargs=True)

    def stop(self) -> None:
        """Stop recording, and drop what was recorded."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._checkpoint = self._record = self._failure = None
        self._inputs = self._rest = None
        self._pieces = []
        self._rows = []

    def _watch(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Record a pass; an error inside the trainer's own calls waits until they are over."""
        try:
            self._record_pass(args, kwargs, output[0])
        except Exception as error:  # whatever it is, the trainer's step goes on
            self._failure = error

    def _record_pass(self, args: Any, kwargs: Any, hidden: Tensor) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None or not (torch.is_grad_enabled() and hidden.requires_grad):
            return
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if not isinstance(mask, Tensor) or mask.shape != ids.shape:
            mask = torch.ones_like(ids)
        self._rest = self._rest or _read_layout(self._inputs or {})
        rows = [list(islice(column, len(ids))) for column in self._rest]
        starts, advantages = (values if len(values) == len(ids) else None for values in rows)
        piece = ForwardPass(ids.detach(), mask.bool(), starts, advantages, hidden.detach())
        hidden.register_hook(lambda gradient: setattr(piece, "gradient", gradient.detach()))
        self._pieces.append(piece)

    def after_backward(self) -> None:
        """Compute the weights of a micro-batch; call it at its θ after every backward pass."""
        if self._hook is None:
            return
        pieces = self._pieces
        self._pieces = []
        head = head_of(_causal_lm(self._model))
        temperature = _read_temperature(self.trainer.args)

        def weigh_sequences() -> list[tuple[Rollouts, Rollouts]]:
            if self._failure is not None:
                raise self._failure
            pairs = (sequences_of(piece, head, temperature) for piece in pieces)
            return [pair for pair in pairs if pair is not None]

        with evaluating(self._model):
            self._rows += together(weigh_sequences)

    def look(self) -> None:
        """Assemble the record once .grad is as the optimizer uses it; every process calls this."""
        if self._hook is None:
            return
        self.after_backward()
        self._hook.remove()
        args = self.trainer.args
        model = self._model
        with evaluating(model):
            policy = together(
                lambda: Policy(
                    model,
                    self.trainer.processing_class,
                    temperature=_read_temperature(args),
                    precision=precision_of(args),
                )
            )
            self._held_out_lines = together(lambda: held_out_lines(policy, self.held_out))
            max_norm = args.max_grad_norm or None
            tolerance = replay_tolerance(policy)
            replays: list[tuple[float, float, Rollouts | None]] = []
            shares = together(lambda: [concatenate(x) for x in zip(*self._rows, strict=True)])
            for share in shares or (None, None):  # without an entropy term, and with one
                error, size = replay_error(policy, share, max_norm)
                replays.append((error, size, share))
                if error <= tolerance:
                    break
            error, size, share = min(replays, key=lambda replay: replay[0])
        update = {
            "step": self.trainer.state.global_step + 1,
            "learning_rate": float(self.trainer.optimizer.param_groups[0]["lr"]),
            "gradient_norm": size,
            "max_grad_norm": max_norm,
            "temperature": policy.temperature,
            "replayable": error <= tolerance,
            "replay_error": error,
        }
        of_all_processes = [rows for rows in gather(share) if rows is not None]
        if not of_all_processes and error == 0.0:  # every response is masked: no gradient either
            if rank() == 0:
                words = "The loss of the step from %s masks every response: it has no record."
                log.warning(words, self._checkpoint)
            self.stop()
            return
        self._record = (_join_shares(of_all_processes, policy), update)

    def write(self, control: Vector | None = None) -> None:
        """Write the record of the step that was just taken; every process calls this.

        Args:
            control: The part that a step control added to v, or None.
        """
        record = self._record
        checkpoint = self._checkpoint
        self.stop()
        if record is None or checkpoint is None:
            return
        rollouts, update = record
        if not update["replayable"]:
            rollouts = rollouts.with_columns(token_weights=None, entropy_weights=None)

        def save() -> None:
            if rank() == 0 and checkpoint.is_dir():
                write_names(checkpoint, optimizer_names(self._model, self.trainer.optimizer))
                write_next_update(checkpoint, rollouts, update, control, self._held_out_lines)

        together(save)
        if not update["replayable"]:
            log.warning(
                "The step from %s cannot be replayed from its token weights: the gradient they "
                "give is off by %.2g of the one that was used. The loss has a part that is not a "
                "function of the log-probabilities and entropies (a router's loss), or the "
                "forward pass is not the policy's (dropout, packed sequences). No more steps are "
                "recorded.",
                checkpoint,
                update["replay_error"],
            )
            self._is_over = True


def _causal_lm(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "peft_config") else model


def _read_temperature(args: Any) -> float:
    """The temperature of the loss: that of the trainer's arguments, else 1."""
    temperature = getattr(args, "temperature", None)
    return 1.0 if temperature is None else float(temperature)


def _read_layout(inputs: Any) -> tuple[Iterator[Any], Iterator[Any]]:
    """Where the responses of a micro-batch start in padded rows, and advantages; no rows if not."""
    prompts = inputs.get("prompt_ids")
    labels = inputs.get("labels")
    starts = []
    if isinstance(prompts, Tensor) and prompts.ndim == 2:
        starts = [prompts.shape[1]] * len(prompts)
    elif isinstance(labels, Tensor) and labels.ndim == 2:
        trained = (labels != -100).int()
        starts = trained.argmax(1).where(trained.any(1), labels.shape[1] - 1).tolist()
    advantages = inputs.get("advantages")
    flat = isinstance(advantages, Tensor) and advantages.ndim == 1
    return iter(starts), iter(advantages.tolist() if flat else ())


def _join_shares(shares: list[Rollouts], policy: Policy) -> Rollouts:
    """The batch of all processes, with keys and, where there is a tokenizer, texts."""
    if not shares:
        raise ValueError("No sequence was recorded of which the loss of this trainer was computed.")
    batch = concatenate(shares)
    keys = [prompt.key for prompt in name_prompts([ids.tolist() for ids in batch.prompt_ids])]
    return batch.with_columns(
        prompt_index=torch.tensor(numbered(batch.prompt_ids)),
        prompt_keys=keys,
        response_texts=texts_of(policy, batch.response_ids),
    )
