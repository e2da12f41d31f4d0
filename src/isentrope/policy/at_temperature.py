"""A policy at another temperature than its own, and the one that a record is nearest to."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from scipy.optimize import minimize_scalar
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import root_mean_square
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score

TEMPERATURES = (0.24, 2.5)
"""Between which the sampler's temperature is searched for."""
RESPONSES_COMPARED = 16
"""Responses by which it is found."""


@contextmanager
def at_temperature(policy: Policy, temperature: float) -> Generator[None]:
    """Score and draw at another temperature.

    Args:
        policy: The policy, whose own temperature is restored.
        temperature: The other one.

    Yields:
        Nothing.
    """
    before = policy.temperature
    policy.temperature = temperature
    try:
        yield
    finally:
        policy.temperature = before


def logprobs_at(policy: Policy, rollouts: Rollouts, temperature: float) -> Tensor:
    """The scorer's log-probabilities at a temperature.

    Args:
        policy: The policy.
        rollouts: n sequences.
        temperature: The temperature.

    Returns:
        (n, t), 0 where there is no token.
    """
    with at_temperature(policy, temperature):
        return score(policy, rollouts).logprobs


def nearest_temperature(policy: Policy, rollouts: Rollouts) -> tuple[float, Tensor]:
    """The temperature at which the scorer is nearest to the sampler's log-probabilities.

    Args:
        policy: The policy.
        rollouts: n sequences with the sampler's log-probabilities.

    Returns:
        The temperature, and (n, t) the scorer's log-probabilities at it.
    """
    sample = rollouts.select(range(min(RESPONSES_COMPARED, len(rollouts))))
    mask = sample.mask
    recorded = sample.padded("sampler_logprobs")

    def disagreement(temperature: float) -> float:
        gap = recorded - logprobs_at(policy, sample, temperature)
        return root_mean_square(gap[mask])

    options: dict[str, Any] = {"bounds": TEMPERATURES, "options": {"xatol": 1e-6}}
    best = float(cast(Any, minimize_scalar(disagreement, method="bounded", **options)).x)
    return best, logprobs_at(policy, rollouts, best)
