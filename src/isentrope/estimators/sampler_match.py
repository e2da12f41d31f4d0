"""Whether the scored policy drew the responses; used by `measure` and by `check`.

The log-probabilities that the sampler kept are compared with those of the scorer:

    rounding     they differ by no more than its tolerance: the sampler is the policy
    temperature  they are those of the scorer's logits at another temperature, at which the
                 responses are likelier than at its own: the weights at θ are known over the whole
                 vocabulary, and are judged as every other (T2)
    noise        they differ a little around 0, as rounding in a shorter type or another engine
                 does: the kept ones enter the weights, whose noise is judged with the rest
    unknown      anything else: no number from the batch has an interval

Noise differs from an offset or a filter in E_s[π/π_s] = 1 at every prefix, where the kept
log-probabilities are those of draws over the whole vocabulary. The factors π/π_s of different
tokens are then uncorrelated, so their mean has the error of independent ones.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import root_mean_square
from isentrope.policy.chi_square import RowSampler
from isentrope.policy.language_model import Policy
from isentrope.policy.ratio_test import ratio_test
from isentrope.policy.record_causes import drawn_at, tolerance_of
from isentrope.policy.token_statistics import Scores

LARGEST_NOISE = 0.1
"""The largest such difference that can be noise."""
DEVIATIONS = 4.0
"""Standard errors by which the mean of π/π_s may differ from 1."""


@dataclass(frozen=True)
class SamplerMatch:
    """How the sampler compares with the scorer.

    Attributes:
        difference: Root mean square difference of their log-probabilities, nats per token; None
            where the sampler kept none.
        sampler: What the responses were drawn from, where it is known.
        agrees: Whether it is the policy, but for rounding.
    """

    difference: float | None
    sampler: RowSampler | None
    agrees: bool

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for numbers that are computed from the batch."""
        if self.agrees:
            return ()
        if self.sampler is not None and any(self.sampler.noise):
            return (
                "The sampler's log-probabilities differ from the scorer's by "
                f"{self.difference:.2g} nats per token (root mean square) around 0, as those of a "
                "shorter type or another engine do; the responses are reweighted by those that the "
                "sampler kept.",
            )
        if self.sampler is not None:
            return (
                f"The responses were drawn at temperature {self.sampler.temperature:.3g} and are "
                "reweighted to the temperature that is scored.",
            )
        return (
            f"The sampler's log-probabilities differ from the scorer's by {self.difference:.2g} "
            "nats per token (root mean square), and neither noise nor draws at another temperature "
            "explain it: no number from these responses has an interval. isentrope check and "
            "ise.check_logprobs name the likely cause.",
        )


def match_sampler(policy: Policy, rollouts: Rollouts, scores: Scores) -> SamplerMatch:
    """Compare the sampler's log-probabilities with the scorer's.

    Args:
        policy: The policy as scored.
        rollouts: n sequences.
        scores: Their scores at θ.

    Returns:
        The comparison; a sampler that kept nothing is assumed to be the policy.
    """
    policy_itself = RowSampler(policy.temperature)
    if rollouts.sampler_logprobs is None:
        return SamplerMatch(None, policy_itself, True)
    ratios = (scores.logprobs - rollouts.padded("sampler_logprobs"))[scores.mask]
    difference = root_mean_square(ratios)
    if difference <= tolerance_of(policy):
        return SamplerMatch(difference, policy_itself, True)
    at_another_temperature = drawn_at(policy, rollouts, scores)
    if at_another_temperature is not None:
        temperature, drawn_there = at_another_temperature
        return SamplerMatch(difference, RowSampler(temperature) if drawn_there else None, False)
    noise = noise_of(ratios)
    return SamplerMatch(difference, noise and replace(policy_itself, noise=noise), False)


def noise_of(log_ratios: Tensor) -> tuple[float, float] | None:
    """Mean square and mean fourth power of π/π_s − 1, where it can be noise.

    Args:
        log_ratios: (m,) log π/π_s of all tokens, one of them not 0.

    Returns:
        Both; None where they are too large, or the mean of π/π_s − 1 differs from 0 by more than
        its error.
    """
    small = float(log_ratios.square().mean()) <= LARGEST_NOISE**2
    if not (small and abs(ratio_test(log_ratios).z) <= DEVIATIONS):
        return None
    factors = log_ratios.expm1()
    return float(factors.square().mean()), float(factors.pow(4).mean())
