"""Whether the scored policy drew the responses; used by `measure` and by `check`.

The log-probabilities that the sampler kept are compared with those of the scorer:

    rounding     they differ by no more than its tolerance: the sampler is the policy
    temperature  they are those of the scorer's logits at another temperature: the weights at θ
                 are known over the whole vocabulary, and are judged as every other (T2)
    unknown      anything else: no number from the batch has an interval
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores
from isentrope.rollouts import Rollouts

TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Root mean square difference of sampler and scorer per token that is rounding, nats."""
SHORT_TOLERANCE = 0.1
"""The same for a scorer in a type shorter than float32."""
TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Where the search for the sampler's temperature starts."""


@dataclass(frozen=True)
class SamplerMatch:
    """How the sampler compares with the scorer.

    Attributes:
        difference: Root mean square difference of their log-probabilities, nats per token; None
            where the sampler kept none.
        temperature: Temperature of the scorer's logits at which they agree; None if there is none.
        agrees: Whether they agree at the scorer's own temperature.
    """

    difference: float | None
    temperature: float | None
    agrees: bool

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for numbers that are computed from the batch."""
        if self.agrees:
            return ()
        if self.temperature is not None:
            return (
                f"The responses were drawn at temperature {self.temperature:.3g} and are "
                "reweighted to the temperature that is scored.",
            )
        return (
            f"The sampler's log-probabilities differ from the scorer's by {self.difference:.2g} "
            "nats per token (root mean square), and no temperature explains it: the responses are "
            "not draws of the policy that is scored, and no number from them has an interval. "
            "isentrope check names the likely cause.",
        )


def root_mean_square(values: Tensor, mask: Tensor) -> float:
    """√ mean x² over the tokens.

    Args:
        values: (n, t).
        mask: (n, t) bool.

    Returns:
        The root mean square.
    """
    return float(values[mask].square().mean().sqrt())


def tolerance_of(policy: Policy) -> float:
    """Difference of sampler and scorer that is rounding, nats per token.

    Args:
        policy: The policy as scored.

    Returns:
        The tolerance of the shortest type of its parameters.
    """
    types = {p.dtype for p in policy.model.parameters() if p.is_floating_point()}
    return max(TOLERANCES.get(dtype, SHORT_TOLERANCE) for dtype in types)


def match_sampler(policy: Policy, rollouts: Rollouts, scores: Scores) -> SamplerMatch:
    """Compare the sampler's log-probabilities with the scorer's.

    Args:
        policy: The policy as scored.
        rollouts: n sequences.
        scores: Their scores at θ.

    Returns:
        The comparison; a sampler that kept nothing is assumed to be the policy.
    """
    if rollouts.sampler_logprobs is None:
        return SamplerMatch(None, policy.temperature, True)
    difference = _difference(rollouts, scores)
    tolerance = tolerance_of(policy)
    if difference <= tolerance:
        return SamplerMatch(difference, policy.temperature, True)
    return SamplerMatch(difference, _other_temperature(policy, rollouts, tolerance), False)


def _difference(rollouts: Rollouts, scores: Scores) -> float:
    gap = rollouts.padded("sampler_logprobs") - scores.logprobs
    return root_mean_square(gap, scores.mask)


def _other_temperature(policy: Policy, rollouts: Rollouts, tolerance: float) -> float | None:
    """The temperature at which the scorer agrees with the sampler, if there is one."""
    few = rollouts.select(range(min(16, len(rollouts))))

    def disagreement(temperature: float, of: Rollouts = few) -> float:
        with _at_temperature(policy, temperature):
            return _difference(of, score(policy, of))

    near = min((t for t in TEMPERATURES if t != policy.temperature), key=disagreement)
    options: dict[str, Any] = {"bounds": (near / 1.25, near * 1.25), "method": "bounded"}
    minimum = cast(Any, minimize_scalar(disagreement, options={"xatol": 1e-5}, **options))
    best = near if disagreement(near) <= disagreement(minimum.x) else float(minimum.x)
    if disagreement(best) > tolerance or disagreement(best, rollouts) > tolerance:
        return None
    return best


@contextmanager
def _at_temperature(policy: Policy, temperature: float) -> Generator[None]:
    own = policy.temperature
    policy.temperature = temperature
    try:
        yield
    finally:
        policy.temperature = own
