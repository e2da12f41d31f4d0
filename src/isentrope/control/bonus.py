"""An entropy bonus: its pathwise part, as is common, or the complete gradient.

    J + β h,   h = Σ_i Σ_k H_ik / Σ_i T_i
    ∂h = 1/N Σ_ik (∂H_ik + G_ik ∂s_ik),     G_ik = Σ_{j>k} (H_ij − h) − b_ik,     N = Σ_i T_i

The pathwise part differentiates H at the positions that were sampled (d = β/N). The score part is
the effect of a token on the positions that follow (c' = c + β G/N): H_ij depends on the tokens
before j, so G_ik sums over j > k, and subtracts h per following token. b_ik is the mean of the same
sum over the other responses to the prompt that have a token at k; it depends on other responses
alone, so it changes no expectation. per_sequence is β ℋ, ℋ = Σ_ik H_ik / n:
G_ik = Σ_{j>k} H_ij − b_ik, over n in place of N.

`per_sequence` is unbiased for responses as they are sampled; `per_token` has the error O(1/n) of a
ratio of means. An update batch omits groups with equal rewards, so both are gradients of the
entropy on the prompts and responses that are kept.

Source: the pathwise part is TRL's `entropy_coef`, verl's `entropy_coeff`, OpenRLHF's
`actor.entropy_coef`, all 0 by default; β = .005 is the largest of Skywork-OR1. Different here: the
mean is over the tokens of the batch, where TRL takes that of each micro-batch. The complete mode is
new here.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from isentrope.control.base import TokenRule, options
from isentrope.control.tokens import Rewritten, Tokens


@options
class Bonus(TokenRule):
    """Add β times the mean entropy to the objective.

    Attributes:
        strength: β, per nat.
        mode: "pathwise" or "complete".
        functional: "per_token" (h) or "per_sequence" (ℋ).
        baseline: "group", or "none" for b = 0.
    """

    strength: float = 0.005
    mode: Literal["pathwise", "complete"] = "pathwise"
    functional: Literal["per_token", "per_sequence"] = "per_token"
    baseline: Literal["group", "none"] = "group"
    two_sided: ClassVar[bool] = True

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Add the bonus."""
        mask = tokens.mask.double()
        unit = float(mask.sum()) if self.functional == "per_token" else len(mask)
        scale = strength / unit
        if self.mode == "pathwise":
            return Rewritten(tokens.weights, scale * mask)
        score = self._returns(tokens) - (self._baseline(tokens) if self.baseline == "group" else 0)
        return Rewritten(tokens.weights + scale * score * mask, scale * mask)

    def _returns(self, tokens: Tokens) -> Tensor:
        """(n, t) Σ_{j>k} of H, less h where it is per token."""
        values = tokens.entropies
        if self.functional == "per_token":
            values = (values - values[tokens.mask].mean()) * tokens.mask
        return values.flip(1).cumsum(1).flip(1) - values

    def _baseline(self, tokens: Tokens) -> Tensor:
        """(n, t) mean of the returns of the group's other responses with a token there."""
        mask, returns = tokens.mask.double(), self._returns(tokens) * tokens.mask
        groups = int(tokens.group.max()) + 1
        sums, counts = (
            torch.zeros(groups, mask.shape[1], dtype=torch.float64).index_add_(0, tokens.group, x)
            for x in (returns, mask)
        )
        others = counts[tokens.group] - mask
        return (sums[tokens.group] - returns) / others.clamp(min=1)
