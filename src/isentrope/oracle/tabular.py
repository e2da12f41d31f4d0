"""A softmax table: one free row of logits for every prefix, the simplest policy there is.

With `memory` tokens the row depends on the last tokens alone: one makes a Markov chain, whose
parameters are shared by all positions.

It has the two parts `Policy` needs (a decoder that maps tokens to hidden states and an output
embedding), so every estimator runs on it as on a transformer. Its "hidden state" is the row.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig


class TabularPolicy(nn.Module):
    """π(a | prefix) = softmax(table[prefix])_a for one-token prompts and short responses.

    Attributes:
        table: (prefixes, v) trainable logits.
    """

    def __init__(
        self,
        vocabulary: int,
        max_new_tokens: int,
        *,
        memory: int | None = None,
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Draw a random table.

        Args:
            vocabulary: v, number of tokens; also the number of possible prompts.
            max_new_tokens: Longest response.
            memory: Number of last tokens that a row depends on; None for all.
            scale: Standard deviation of the logits.
            seed: Seed of the table.

        Raises:
            ValueError: If the memory is below one token.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        rows = sum((vocabulary + 1) ** (k + 1) for k in range(max_new_tokens))
        if memory is not None:
            if memory < 1:
                raise ValueError(f"memory is a number of tokens, 1 or more, got {memory}.")
            rows = (vocabulary + 1) ** memory
        logits = scale * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)
        self.table = nn.Parameter(logits)
        self.vocabulary = vocabulary
        self.config = PreTrainedConfig()
        self.config.vocab_size = vocabulary

    def get_decoder(self) -> Callable[..., tuple[Tensor]]:
        """Maps `input_ids` (b, l) to a one-tuple of table rows (b, l, v)."""

        def decoder(input_ids: Tensor, use_cache: bool = False) -> tuple[Tensor]:
            return (self.table[self._number_rows(input_ids)],)

        return decoder

    def get_output_embeddings(self) -> nn.Module:
        """The identity: rows are logits already."""
        return nn.Identity()

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        """Logits (b, l, v) of the next token after every prefix."""
        return SimpleNamespace(logits=self.table[self._number_rows(input_ids)])

    def _number_rows(self, input_ids: Tensor) -> Tensor:
        """A number in base v + 1 for every prefix, whose last digits are its last tokens."""
        rows = torch.zeros_like(input_ids)
        number = torch.zeros_like(input_ids[:, 0])
        for k in range(input_ids.shape[1]):
            number = number * (self.vocabulary + 1) + input_ids[:, k] + 1
            rows[:, k] = number
        return rows % len(self.table)
