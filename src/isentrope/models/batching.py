"""Micro-batches: sequences sorted by length, filled to a token budget, padded on the right.

A micro-batch ends too where its padding would cost more than one more micro-batch does. Counted in
tokens, that is few on a CPU, and many on an accelerator. A causal model never looks right, so right
padding needs no attention mask and changes nothing. Only response tokens that the policy drew are
predicted: `rows`, `columns` say where, packed to one axis. A pass that is rounded to 16 bits
depends on what is read together and where: `as_trained` pads as TRL does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isentrope.nouns.rollouts import Rollouts
from isentrope.parallel.ranks import ALONE, Ranks

PADDING = 64
"""Padded tokens that cost as much as one more micro-batch on a CPU (`benchmarks.kernel`)."""
PADDING_ON_ACCELERATOR = 1024
"""The same elsewhere."""


class RowRange(NamedTuple):
    """Sequences of a micro-batch that the model reads at once.

    Attributes:
        start: The first row of them.
        stop: The row after the last.
        length: Tokens of the longest, prompt included.
    """

    start: int
    stop: int
    length: int


@dataclass(frozen=True)
class MicroBatch:
    """b sequences padded to l tokens, and the m response tokens to be predicted in them.

    Attributes:
        sequences: (b,) int64, which sequences of the rollouts these are.
        input_ids: (b, l) int64, prompt + response without its last token.
        rows: (m,) int64, row of `input_ids` of each predicted token.
        columns: (m,) int64, the column from which it is predicted.
        targets: (m,) int64, the predicted token.
        positions: (m,) int64, k - 1: its place in the response.
        counted: False where the micro-batch is another process's, run here again only because all
            processes of a sharded model run equally many; its values are dropped.
        prompt: Tokens that all sequences begin with and that are read once (`shared_prompts`); 0
            for whole sequences.
        parts: How the rest is read after a shared prompt, from the first row to the last.
        attention_mask: (b, l) int64, 1 at tokens; None where padding is on the right alone.
    """

    sequences: Tensor
    input_ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    positions: Tensor
    counted: bool = True
    prompt: int = 0
    parts: tuple[RowRange, ...] = ()
    attention_mask: Tensor | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch on another device."""
        columns = vars(self).items()
        return replace(self, **{n: x.to(device) for n, x in columns if isinstance(x, Tensor)})

    def place(self, packed: Tensor, out: Tensor) -> None:
        """Write packed values (m, ...) into `out` (n, t, ...) at their sequence and position."""
        if self.counted:
            places = self.sequences[self.rows].to(out.device), self.positions.to(out.device)
            out[places] = packed.to(out.device, out.dtype)

    def pack(self, padded: Tensor) -> Tensor:
        """Read the (m,) values of these tokens from a padded (n, t) array."""
        places = self.sequences[self.rows].to(padded.device), self.positions.to(padded.device)
        return padded[places]


def micro_batches(
    rollouts: Rollouts,
    max_tokens: int,
    ranks: Ranks = ALONE,
    unit_of: Tensor | None = None,
    padding: int = PADDING,
) -> list[MicroBatch]:
    """Cut this process's part of rollouts into micro-batches of at most `max_tokens` padded tokens.

    Args:
        rollouts: n sequences.
        max_tokens: Budget b · l; a single longer sequence gets a micro-batch of its own.
        ranks: The processes that share them, by tokens.
        unit_of: (n,) sequences of one unit go to one process; None: each is its own.
        padding: Padded tokens of a micro-batch, at most.

    Returns:
        Micro-batches, longest sequences first (if memory is short, the first micro-batch shows it);
        equally many on every process, some of which may not be counted.
    """
    totals = tokens_read(rollouts)
    order = sorted(range(len(totals)), key=lambda i: -totals[i])
    owner = ranks.owners(totals, unit_of)
    parts = [
        cut_by_length([i for i in order if owner[i] == k], totals, max_tokens, padding)
        for k in range(ranks.size)
    ]
    share = parts[ranks.rank]
    idle = replace(padded(rollouts, order[-1:]), counted=False)
    missing = max(map(len, parts)) - len(share)
    return [padded(rollouts, part) for part in share] + [idle] * missing


def tokens_read(rollouts: Rollouts) -> list[int]:
    """Tokens of each sequence that a model reads: all but the last."""
    pairs = zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
    return [len(p) + len(r) - 1 for p, r in pairs]


def cut_by_length(
    order: list[int], totals: list[int], max_tokens: int, padding: int
) -> list[list[int]]:
    """Cut sequences into micro-batches.

    Args:
        order: Sequences, longest first.
        totals: Tokens of each sequence of the rollouts.
        max_tokens: Padded tokens of a micro-batch; a single longer sequence is one.
        padding: Of these, at most so many that are padding.

    Returns:
        The sequences of each micro-batch.
    """
    parts: list[list[int]] = []
    longest = padded = 0
    for i in order:
        padded += longest - totals[i]
        if not parts or padded > padding or (len(parts[-1]) + 1) * longest > max_tokens:
            parts.append([])
            longest = max(1, totals[i])
            padded = 0
        parts[-1].append(i)
    return parts


def padded(rollouts: Rollouts, indices: list[int]) -> MicroBatch:
    """Make one micro-batch.

    Args:
        rollouts: n sequences.
        indices: Those of the micro-batch.

    Returns:
        It, padded to the longest.
    """
    prompts = [rollouts.prompt_ids[i] for i in indices]
    responses = [rollouts.response_ids[i] for i in indices]
    inputs = [torch.cat((p, r))[:-1] for p, r in zip(prompts, responses, strict=True)]
    lengths = torch.tensor([len(r) for r in responses])
    starts = torch.tensor([len(p) - 1 for p in prompts])
    rows = torch.arange(len(indices)).repeat_interleave(lengths)
    positions = torch.cat([torch.arange(len(r)) for r in responses])
    targets = torch.cat(responses)
    if rollouts.response_mask is not None:
        drawn = torch.cat([rollouts.response_mask[i] for i in indices])
        rows = rows[drawn]
        positions = positions[drawn]
        targets = targets[drawn]
    return MicroBatch(
        sequences=torch.tensor(indices),
        input_ids=pad_sequence(inputs, batch_first=True),
        rows=rows,
        columns=starts[rows] + positions,
        targets=targets,
        positions=positions,
    )


def as_trained(
    rollouts: Rollouts, micro_batch: int | None, max_tokens: int, ranks: Ranks = ALONE
) -> list[MicroBatch]:
    """Micro-batches as TRL reads them: prompts padded on the left, responses on the right.

    All are padded to the longest prompt and response of the rollouts, which are in training's
    order. Passes of more than `max_tokens` are cut.

    Returns:
        Micro-batches; equally many on every process, some of which may not be counted.
    """
    tokens = rollouts.prompt_ids, rollouts.response_ids
    ones = tuple([torch.ones_like(x) for x in ids] for ids in tokens)
    ids, mask = (
        torch.cat((pad_sequence(p, True, padding_side="left"), pad_sequence(r, True)), 1)
        for p, r in (tokens, ones)
    )
    prompt_length = max(map(len, rollouts.prompt_ids))
    batches: list[MicroBatch] = []
    for of_training in torch.split(torch.arange(len(ids)), micro_batch or len(ids)):
        for part in torch.split(of_training, max(1, max_tokens // ids.shape[1])):
            plain = padded(rollouts, [int(i) for i in part])
            columns = prompt_length - 1 + plain.positions
            batches.append(
                replace(plain, input_ids=ids[part], columns=columns, attention_mask=mask[part])
            )
    share = batches[ranks.rank :: ranks.size]
    idle = replace(batches[0], counted=False)
    return share + [idle] * (-(-len(batches) // ranks.size) - len(share))
