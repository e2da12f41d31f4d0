"""Weighted sums of the log-probabilities and entropies of tokens, the functions differentiated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts

if TYPE_CHECKING:
    from isentrope.update.step import Step


@dataclass(frozen=True)
class TokenSum:
    """The functions Σ_k (a_ik s_ik + b_ik H_ik) to be differentiated.

    Attributes:
        rollouts: n sequences.
        logprob_weights: a, (n, t) float64.
        entropy_weights: b, (n, t) float64, or None.
        rows: (n,) int64, the row that each sequence's gradient is added to; None: its own.
        of_training: Whether the gradients are those of a training step, or the derivatives of the
            scores themselves; they differ in padding rows (`models.architecture`).
    """

    rollouts: Rollouts
    logprob_weights: Tensor
    entropy_weights: Tensor | None = None
    rows: Tensor | None = None
    of_training: bool = False

    def as_trained(self) -> TokenSum:
        """The same functions, with the gradients that training takes of them."""
        return replace(self, of_training=True)

    @property
    def row_of(self) -> Tensor:
        """(n,) the row of each sequence."""
        return torch.arange(len(self.rollouts)) if self.rows is None else self.rows

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.row_of.max()) + 1

    def times(self, factors: Tensor) -> TokenSum:
        """The functions of the sequences times (n,) numbers."""
        a = self.logprob_weights
        b = self.entropy_weights
        scaled = None if b is None else factors[:, None] * b
        return replace(self, logprob_weights=factors[:, None] * a, entropy_weights=scaled)

    def select(self, indices: Tensor, rows: Tensor | None = None) -> TokenSum:
        """Some of the sequences, in rows of their own or in the rows given.

        Args:
            indices: Positions in 0..n−1.
            rows: The row of each.

        Returns:
            The same functions of fewer sequences.
        """
        longest = int(self.rollouts.lengths[indices].max())
        b = self.entropy_weights
        return TokenSum(
            self.rollouts.select(indices),
            self.logprob_weights[indices, :longest],
            None if b is None else b[indices, :longest],
            rows,
            self.of_training,
        )

    def rows_between(self, start: int, end: int, shift: int = 0) -> TokenSum:
        """The sequences whose row is in [start, end), rows counted from `shift`."""
        row_of = self.row_of
        inside = ((row_of >= start) & (row_of < end)).nonzero()[:, 0]
        return self.select(inside, row_of[inside] - shift)


def step_functions(U: Rollouts, step: Step) -> TokenSum:
    """The sums of a step: c_ik s_ik + d_ik H_ik of every token, as training differentiates them.

    Args:
        U: The update batch of the step.
        step: The step.

    Returns:
        One function per sequence.
    """
    return TokenSum(U, step.token_weights, step.entropy_weights).as_trained()


def score_sums(rollouts: Rollouts, rows: Tensor | None = None) -> TokenSum:
    """S(t_i) of every sequence, whose gradients give the Fisher kernel.

    Args:
        rollouts: n sequences.
        rows: (n,) row of each sequence, its own by default.

    Returns:
        a = 1 on every token.
    """
    return TokenSum(rollouts, rollouts.mask.double(), rows=rows)


def first_tokens(token_sum: TokenSum) -> TokenSum:
    """Two sequences cut to a few tokens, to try a computation on.

    Args:
        token_sum: At least one sequence.

    Returns:
        Their first tokens, with weights 1 on s and, if it is used, on H.
    """
    rollouts = token_sum.rollouts
    pair = [0, len(rollouts) - 1]
    prompts = [rollouts.prompt_ids[i][-3:] for i in pair]
    responses = [rollouts.response_ids[i][: 4 - k] for k, i in enumerate(pair)]
    sums = score_sums(Rollouts(prompts, responses, torch.arange(2)))
    b = None if token_sum.entropy_weights is None else sums.logprob_weights
    return replace(sums, entropy_weights=b, of_training=token_sum.of_training)
