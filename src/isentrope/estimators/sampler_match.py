"""Whether the scored policy drew the responses; used by `measure` and by `check`.

The log-probabilities that the sampler kept are compared with those of the scorer:

    rounding     they differ by no more than its tolerance: the sampler is the policy
    temperature  they are those of the scorer's logits at another temperature: the weights at θ
                 are known over the whole vocabulary, and are judged as every other (T2)
    noise        they differ a little around 0, as rounding in a shorter type or another engine
                 does: the kept ones enter the weights, whose noise is judged with the rest
    unknown      anything else: no number from the batch has an interval

Noise differs from an offset or a filter in E_s[π/π_s] = 1 at every prefix, where the kept
log-probabilities are those of draws over the whole vocabulary. The factors π/π_s of different
tokens are then uncorrelated, so their mean has the error of independent ones.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from scipy.optimize import minimize_scalar
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.chi_square import RowSampler
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores

TOLERANCE = 1e-3
"""Root mean square difference of sampler and scorer per token that is rounding, nats."""
SHORT_TOLERANCE = 0.1
"""The same for a scorer in a type shorter than float32."""
NOISE = 0.1
"""The largest such difference that can be noise."""
DEVIATIONS = 4.0
"""Standard errors by which the mean of π/π_s may differ from 1."""
TEMPERATURES = (0.24, 2.5)
"""Between which the sampler's temperature is searched for."""


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
            "nats per token (root mean square), and no temperature explains it: the responses are "
            "not draws of the policy that is scored, and no number from them has an interval. "
            "isentrope check names the likely cause.",
        )


def root_mean_square(values: Tensor) -> float:
    """√ mean x²."""
    return float(values.square().mean().sqrt())


def tolerance_of(policy: Policy) -> float:
    """Difference of sampler and scorer that is rounding, nats per token.

    Args:
        policy: The policy as scored.

    Returns:
        The tolerance of the shortest type of its parameters.
    """
    bytes_ = (p.element_size() for p in policy.model.parameters() if p.is_floating_point())
    return SHORT_TOLERANCE if min(bytes_) < 4 else TOLERANCE


def match_sampler(policy: Policy, rollouts: Rollouts, scores: Scores) -> SamplerMatch:
    """Compare the sampler's log-probabilities with the scorer's.

    Args:
        policy: The policy as scored.
        rollouts: n sequences.
        scores: Their scores at θ.

    Returns:
        The comparison; a sampler that kept nothing is assumed to be the policy.
    """
    own = RowSampler(policy.temperature)
    if rollouts.sampler_logprobs is None:
        return SamplerMatch(None, own, True)
    ratios = (scores.logprobs - rollouts.padded("sampler_logprobs"))[scores.mask]
    difference, tolerance = root_mean_square(ratios), tolerance_of(policy)
    if difference <= tolerance:
        return SamplerMatch(difference, own, True)
    other = _other_temperature(policy, rollouts, tolerance)
    if other is not None:
        return SamplerMatch(difference, RowSampler(other), False)
    noise = noise_of(ratios)
    return SamplerMatch(difference, noise and replace(own, noise=noise), False)


def noise_of(log_ratios: Tensor) -> tuple[float, float] | None:
    """Mean square and mean fourth power of π/π_s − 1, where it can be noise.

    Args:
        log_ratios: (m,) log π/π_s of all tokens, one of them not 0.

    Returns:
        Both; None where they are too large, or the mean of π/π_s − 1 differs from 0 by more than
        its error.
    """
    factors = log_ratios.expm1()
    se = float(factors.std()) / len(factors) ** 0.5
    small = float(log_ratios.square().mean()) <= NOISE**2
    if not (small and abs(float(factors.mean())) <= DEVIATIONS * se):
        return None
    return float(factors.square().mean()), float(factors.pow(4).mean())


def _other_temperature(policy: Policy, rollouts: Rollouts, tolerance: float) -> float | None:
    """The temperature at which the scorer agrees with the sampler, if there is one."""
    few = rollouts.select(range(min(16, len(rollouts))))

    def disagreement(temperature: float, of: Rollouts = few) -> float:
        with at_temperature(policy, temperature):
            scores = score(policy, of)
        return root_mean_square((of.padded("sampler_logprobs") - scores.logprobs)[scores.mask])

    options: dict[str, Any] = {"bounds": TEMPERATURES, "options": {"xatol": 1e-6}}
    best = cast(Any, minimize_scalar(disagreement, method="bounded", **options))
    if best.fun > tolerance or disagreement(best.x, rollouts) > tolerance:
        return None
    return float(best.x)


@contextmanager
def at_temperature(policy: Policy, temperature: float) -> Generator[None]:
    """Score and draw at another temperature.

    Args:
        policy: The policy, whose own temperature is restored.
        temperature: The other one.

    Yields:
        Nothing.
    """
    own = policy.temperature
    policy.temperature = temperature
    try:
        yield
    finally:
        policy.temperature = own
