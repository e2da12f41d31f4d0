"""Clip-Cov: drop random tokens of large covariance between log-probability and advantage.

    cov_ik = (A_i − Ā)(s_ik − s̄)
    c'_ik = 0 for max(⌊ρN⌋, 1) random tokens among those of lower < cov < upper

Means are over the N tokens of the batch. Source: PRIME-RL/Entropy-Mechanism-of-RL,
`compute_policy_loss_clip_cov` (arXiv 2505.22617); ρ = 2e-4, bounds 1 and 5.

Different here: the whole batch is one sample, where the source draws in each micro-batch of each
GPU. The published bounds assume advantages divided by the group's standard deviation, so by
default the bounds are quantiles of cov over the batch: its top 2 %. Where a quantile interval
holds fewer tokens than ρN, all of them are taken.
"""

from __future__ import annotations

from typing import Literal

import torch

from isentrope.control.base import Share, TokenRule, count, options
from isentrope.control.tokens import Rewritten, Tokens

_BOUNDS = {"quantile": (0.98, 1.0), "published": (1.0, 5.0)}


@options
class ClipCov(TokenRule):
    """Drop random tokens among those with a large covariance.

    Attributes:
        strength: ρ, the share of the batch's tokens that is dropped.
        bounds: "quantile": `lower` and `upper` are quantiles of cov, the upper one included;
            "published": they are values of cov, both excluded.
        lower: Null stands for .98 of "quantile", 1 of "published".
        upper: Null stands for 1 of "quantile", 5 of "published".
    """

    strength: Share = 2e-4
    bounds: Literal["quantile", "published"] = "quantile"
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        low, high = self._limits
        quantiles = self.bounds == "published" or 0 <= low < high <= 1
        if not (low < high and quantiles):
            raise ValueError(f"bounds={self.bounds} cannot go from {low} to {high}")

    @property
    def _limits(self) -> tuple[float, float]:
        low, high = _BOUNDS[self.bounds]
        return low if self.lower is None else self.lower, high if self.upper is None else self.upper

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Drop tokens."""
        mask, low_high = tokens.mask, self._limits
        A, s = tokens.token_advantages, tokens.logprobs
        covariance = (A - A[mask].mean()) * (s - s[mask].mean())
        if self.bounds == "quantile":
            low, high = covariance[mask].quantile(torch.tensor(low_high, dtype=torch.float64))
            candidates = mask & (covariance > low) & (covariance <= high)
        else:
            candidates = mask & (covariance > low_high[0]) & (covariance < low_high[1])
        places = candidates.flatten().nonzero()[:, 0]
        order = torch.randperm(len(places), generator=tokens.generator())
        dropped = places[order[: count(strength, int(mask.sum()))]]
        weights = tokens.weights.flatten()
        weights[dropped] = 0.0
        return Rewritten(weights.view_as(mask), numbers={"candidates": float(len(places))})
