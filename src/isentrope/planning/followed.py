"""What passes are followed with: batches of equal sequences, and a part of the output head."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from transformers import masking_utils

from isentrope.models.batching import MicroBatch, micro_batches
from isentrope.nouns.rollouts import Rollouts


@dataclass(frozen=True)
class Batch:
    """A batch of equal sequences.

    Attributes:
        sequences: n.
        prompt: Tokens of a prompt.
        response: Tokens of a response.
    """

    sequences: int
    prompt: int
    response: int

    @property
    def length(self) -> int:
        """Tokens of a sequence that the model reads."""
        return self.prompt + self.response - 1

    def first(self, max_tokens: int) -> Batch:
        """The first micro-batch."""
        most = max(1, max_tokens // self.length)
        return Batch(min(self.sequences, most), self.prompt, self.response)

    def part(self, parts: int) -> Batch:
        """The largest of so many equal parts."""
        return Batch(-(-self.sequences // parts), self.prompt, self.response)


@dataclass(frozen=True)
class Head:
    """What is followed of the output embedding.

    Attributes:
        vocabulary: Entries.
        chunk: Entries at a time.
        stands_for: Entries at a time of the real one.
    """

    vocabulary: int
    chunk: int
    stands_for: int

    @property
    def columns(self) -> dict[int, int]:
        """Sizes of an axis over entries, each with that of the real head."""
        left = self.vocabulary % self.chunk
        sizes = {self.vocabulary: self.vocabulary, left: left, self.chunk: self.stands_for}
        return {k: size for k, size in sizes.items() if k}


@contextmanager
def without_packing() -> Generator[None]:
    """No search for packed sequences, which finds some in positions that have no numbers.

    transformers would then build a mask of all pairs of tokens. (Fused attention, which tensors
    without numbers do not have either, holds less than the blocks that are followed for it.)

    Yields:
        Nothing.
    """
    name = "find_packed_sequence_indices"
    own = getattr(masking_utils, name, None)
    if own is None:
        yield
        return
    setattr(masking_utils, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masking_utils, name, own)


def equal_sequences(batch: Batch) -> MicroBatch:
    """A micro-batch of zeros, of real tensors: its sizes are read.

    Args:
        batch: Its sequences.

    Returns:
        All of them.
    """
    n = batch.sequences
    rollouts = Rollouts(
        [torch.zeros(batch.prompt, dtype=torch.long)] * n,
        [torch.zeros(batch.response, dtype=torch.long)] * n,
        torch.arange(n),
    )
    (micro,) = micro_batches(rollouts, n * batch.length)
    return micro


def first_tokens(micro: MicroBatch, tokens: int) -> MicroBatch:
    """The same sequences, of which only the first tokens are predicted.

    Args:
        micro: A micro-batch.
        tokens: How many, in packed order.

    Returns:
        A micro-batch that reads as much.
    """
    packed = ("rows", "columns", "targets", "positions")
    return replace(micro, **{name: getattr(micro, name)[:tokens] for name in packed})
