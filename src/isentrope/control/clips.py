"""Controls that damp some tokens: covariance clips, influence clipping, masks and scales.

Clip-Cov: drop random tokens of large covariance between log-probability and advantage.

    cov_ik = (A_i − Ā)(s_ik − s̄)
    c'_ik = 0 for max(⌊ρN⌋, 1) random tokens among those of lower < cov < upper

Means are over the N tokens of the batch. Source: PRIME-RL/Entropy-Mechanism-of-RL,
`compute_policy_loss_clip_cov` (arXiv 2505.22617); ρ = 2e-4, bounds 1 and 5.

Different here: the whole batch is one sample, where the source draws in each micro-batch of each
GPU. The published bounds assume advantages divided by the group's standard deviation, so by
default the bounds are quantiles of cov over the batch: its top 2 %. Where a quantile interval
holds fewer tokens than ρN, all of them are taken.

KL-Cov: a penalty on the tokens of largest covariance between log-probability and advantage.

    loss += Σ w_i β |log r_ik|   over the share q of the tokens with the largest cov_ik
    cov_ik = (A_i − Ā)(s_ik − s̄),   so that c' = c − w_i β sign(log r)

r is the ratio of the current policy to the sampler: at the first use of a batch it is 1 and the
term has no gradient, so KL-Cov needs trainer.num_iterations > 1. Source: PRIME-RL/
Entropy-Mechanism-of-RL, `compute_policy_loss_kl_cov` (arXiv 2505.22617); q = .2 % (7B) or .02 %
(32B), β = 1; no ratio is clipped.

s and r are those of the step, so the term is added to the loss of each micro-batch, and means and
the largest share are of the micro-batch, as in the source. Its result depends on
training.micro_batch and on the number of processes, as does that of `adaptive` and of no other
control.

Clip_B: damp punished tokens that are far less likely than their entropy suggests.

    S_ik = π_ik (H_ik + s_ik),     z = S − S̄
    c'_ik = (1 − x) c_ik where A_i < 0 and z_ik < −μ σ_z

Mean and standard deviation are over the tokens of the batch. If a step moved the logit of the
sampled token alone, S_ik would be the entropy that the position loses per unit of an increase of
that logit, and gains per unit of a decrease.
Source: agentscope-ai/Trinity-RFT, `clipb_advantage.py` (arXiv 2602.03392); μ = 2.5, x = 1.

Different here: the source clears the response mask, so that the denominator of a token mean
shrinks too; here the denominators stay. μ is in standard deviations of the batch, so it does not
depend on the scale of the advantages.

Influence clipping: damp the tokens that reduce entropy most by measurement.

    c'_ik = (1 − κ) c_ik  for those of the share q of lowest δH_ik that have δH_ik < 0

δH_ik = c_ik ∂_u s_ik, u = P g_H, is the first-order effect of the token on the entropy of fresh
responses, per unit of the learning rate (`attribution.influence`). It is measured, it includes the
effect on the distributions of all other tokens, and it includes the optimizer's scaling P; all
other controls assess a token by its own distribution alone.

This control is new here; q = .02, κ = 1. The trainer draws E on held-out prompts
(`control.measured`).

Masks and scales: a mask to tokens of high entropy, and two baselines for every control.

    entropy_mask     c' = (1 − x 1{H < q_.8}) c    TRL `get_high_entropy_mask`, arXiv 2506.01939
    random_mask      c' = 0 for a random share x of the tokens
    negative_scale   c' = (1 + x) c where A < 0

Different here: the quantile of `entropy_mask` is of the whole batch, where TRL takes that of a
micro-batch over all GPUs; x = 1 is the published mask. Neither mask determines the
direction in which entropy moves, so they take no target.
"""

from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from isentrope.attribution.proxies.proxies import discriminator, token_covariance
from isentrope.control.base import (
    NotNegative,
    Part,
    Positive,
    Rewritten,
    Share,
    TokenRule,
    lowest_share,
    options,
    without_random_tokens,
)
from isentrope.control.bonus import TrainerFields

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

    def apply(self, tokens, strength):
        """Drop tokens."""
        mask, low_high = tokens.mask, self._limits
        covariance = -token_covariance(tokens.logprobs, mask, tokens.advantages)
        if self.bounds == "quantile":
            low, high = covariance[mask].quantile(torch.tensor(low_high, dtype=torch.float64))
            candidates = mask & (covariance > low) & (covariance <= high)
        else:
            candidates = mask & (covariance > low_high[0]) & (covariance < low_high[1])
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
        negative = token_covariance(logprobs.detach(), mask, advantages)
        penalised = lowest_share(negative.cpu(), mask.cpu(), self.share).to(logprobs.device)
        return torch.where(penalised, weights[:, None] * log_ratios.abs(), 0.0).sum()


@options
class ClipB(TokenRule):
    """Damp punished tokens of low S.

    Attributes:
        strength: x, the share of their weight that they lose.
        mu: μ.
    """

    strength: Share = 1.0
    mu: Positive = 2.5

    def apply(self, tokens, strength):
        """Damp tokens."""
        mask = tokens.mask
        S = discriminator(tokens.logprobs, tokens.entropies)
        z = S - S[mask].mean()
        low = mask & (tokens.token_advantages < 0) & (z < -self.mu * z[mask].std())
        return Rewritten(tokens.weights * (1 - strength * low.double()))


@options
class InfluenceClip(TokenRule):
    """Damp the tokens that reduce entropy most.

    Attributes:
        strength: κ, the share of its weight that such a token loses.
        share: q, as a share of all tokens of the batch.
        size: Held-out prompts of E, one response each.
    """

    strength: Share = 1.0
    share: Part = 0.02
    size: Annotated[int, Field(ge=2)] = 64
    needs: ClassVar[str | None] = "influence"

    def apply(self, tokens, strength):
        """Damp tokens: c', and δH summed over the batch and over the damped tokens."""
        influence, mask = cast(Tensor, tokens.influence), tokens.mask
        damped = lowest_share(influence, mask, self.share) & (influence < 0)
        total = float(influence[mask].sum())
        numbers = {"influence": total, "influence_damped": float(influence[damped].sum())}
        return Rewritten(tokens.weights * (1 - strength * damped.double()), numbers=numbers)


@options
class EntropyMask(TokenRule):
    """Only tokens of high entropy have full weight ("80/20").

    Attributes:
        strength: x, the share of its weight that any other token loses.
        quantile: Quantile of the batch's entropies at and above which a token has full weight.
    """

    strength: Share = 1.0
    quantile: Annotated[float, Field(ge=0, lt=1)] = 0.8
    targetable: ClassVar[bool] = False

    def apply(self, tokens, strength):
        """Damp tokens of low entropy."""
        H = tokens.entropies
        low = H[tokens.mask].quantile(self.quantile) > H
        return Rewritten(tokens.weights * (1 - strength * low.double()))


@options
class RandomMask(TokenRule):
    """A random share of the tokens has weight 0.

    Attributes:
        strength: x, the share.
    """

    strength: Share = 0.2
    targetable: ClassVar[bool] = False

    def apply(self, tokens, strength):
        """Drop tokens."""
        return Rewritten(without_random_tokens(tokens, tokens.mask, strength))


@options
class NegativeScale(TokenRule):
    """One factor for all responses with a negative advantage.

    Attributes:
        strength: x; the factor is 1 + x.
    """

    strength: Annotated[float, Field(ge=-1)] = 0.5
    two_sided: ClassVar[bool] = True

    def apply(self, tokens, strength):
        """Scale negatives."""
        return Rewritten(tokens.weights * (1 + strength * (tokens.token_advantages < 0).double()))
