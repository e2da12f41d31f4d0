"""Controls of the tokens of large covariance between log-probability and advantage.

    cov_ik = (A_i − Ā)(s_ik − s̄)

    clip_cov   c'_ik = 0 for max(⌊ρN⌋, 1) random tokens among those of lower < cov < upper
    kl_cov     loss += Σ w_i β |log r_ik| over the share q of the tokens with the largest cov_ik,
               so that c' = c − w_i β sign(log r)

Means are over the N tokens of the batch. Source: PRIME-RL/Entropy-Mechanism-of-RL,
`compute_policy_loss_clip_cov` and `compute_policy_loss_kl_cov` (arXiv 2505.22617); ρ = 2e-4, bounds
1 and 5; q = .2 % (7B) or .02 % (32B), β = 1, no ratio is clipped.

Different here: clip_cov takes the whole batch as one sample, where the source draws in each
micro-batch of each GPU. The published bounds assume advantages divided by the group's standard
deviation, so by default the bounds are quantiles of cov over the batch: its top 2 %. Where a
quantile interval holds fewer tokens than ρN, all of them are taken.

r is the ratio of the current policy to the sampler: at the first use of a batch it is 1 and the
term has no gradient, so kl_cov needs trainer.num_iterations > 1. Its s and r are those of the step,
so the term is added to the loss of each micro-batch, and means and the largest share are of the
micro-batch, as in the source. Its result depends on training.micro_batch and on the number of
processes, as does that of `adaptive` and of no other control.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from isentrope.control.base import (
    NotNegative,
    Part,
    Rewritten,
    Share,
    TokenRule,
    lowest_share,
    options,
    without_random_tokens,
)
from isentrope.control.trainer_fields import TrainerFields

if TYPE_CHECKING:
    from torch import Tensor

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
    multiples: ClassVar[tuple[float, ...]] = (1.0, 10.0, 100.0)

    def __post_init__(self) -> None:
        low, high = self._limits
        in_range = self.bounds == "published" or 0 <= low < high <= 1
        if not (low < high and in_range):
            raise ValueError(f"bounds={self.bounds} cannot go from {low} to {high}")

    @property
    def _limits(self) -> tuple[float, float]:
        low, high = _BOUNDS[self.bounds]
        return low if self.lower is None else self.lower, high if self.upper is None else self.upper

    def apply(self, tokens, strength):
        """Drop tokens."""
        from isentrope.attribution.proxies.proxies import token_covariance

        mask = tokens.mask
        low, high = self._limits
        covariance = -token_covariance(tokens.logprobs, mask, tokens.advantages)
        if self.bounds == "quantile":
            quantiles = covariance.new_tensor([low, high])
            lowest, highest = covariance[mask].quantile(quantiles)
            candidates = mask & (covariance > lowest) & (covariance <= highest)
        else:
            candidates = mask & (covariance > low) & (covariance < high)
        weights = without_random_tokens(tokens, candidates, strength)
        return Rewritten(weights, numbers={"candidates": float(candidates.sum())})


UNCLIPPED = 1e6
"""A clip bound ε that no ratio reaches."""


@options
class KlCov(TokenRule, TrainerFields):
    """Penalise |log r| of tokens with a large covariance.

    Attributes:
        strength: β.
        share: q.
    """

    strength: NotNegative = 1.0
    share: Part = 0.002
    targetable: ClassVar[bool] = True

    def fields(self):
        """Fields of TRL's configuration: no ratio is clipped."""
        return {"epsilon": UNCLIPPED, "epsilon_high": UNCLIPPED}

    def apply(self, tokens, strength):
        """Return the weights unchanged; `loss_term` acts on each micro-batch."""
        return Rewritten(tokens.weights)

    def loss_term(
        self,
        logprobs: Tensor,
        log_ratios: Tensor,
        advantages: Tensor,
        weights: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Σ w_i |log r_ik| over the penalised tokens; the loss has β times this sum.

        Args:
            logprobs: (b, t) s of the micro-batch, at the current θ.
            log_ratios: (b, t) log r, with its graph.
            advantages: (b,) A_i.
            weights: (b,) w_i.
            mask: (b, t) bool, where there is a token.

        Returns:
            A scalar.
        """
        from isentrope.attribution.proxies.proxies import token_covariance

        negative_covariance = token_covariance(logprobs.detach(), mask, advantages)
        penalised = lowest_share(negative_covariance.cpu(), mask.cpu(), self.share)
        penalised = penalised.to(logprobs.device)
        return (weights[:, None] * log_ratios.abs()).where(penalised, 0.0).sum()
