"""The rounding floor of ΔH, measured and not assumed (T13).

Along a step so short that curvature is nothing, S(η) + S(−η) − 2 S(0) is rounding noise alone,
of variance 6σ² if one evaluation has variance σ²; a log-weight, a difference of two evaluations,
has √2 σ. The same second difference of F is the floor of ΔH itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import EntropySample
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector, norm

RELATIVE_STEP = 1e-7
"""‖ηv‖ / ‖θ‖ of the probing step: far above the parameters' own rounding, far below curvature."""


@dataclass(frozen=True)
class RoundingFloor:
    """Noise that rounding alone puts on the numbers.

    Attributes:
        log_weight: Root mean square noise of a sequence's log-weight, nats a sequence.
        entropy_change: Noise of ΔH, in the unit of the functional.
        eta: The probing step's η.
    """

    log_weight: float
    entropy_change: float
    eta: float

    def smallest_eta(self, first_order: float) -> float:
        """Smallest η at which |ηδH₁| stands three floors high.

        Args:
            first_order: δH₁ per unit η.

        Returns:
            η; infinite if δH₁ is 0.
        """
        return 3 * self.entropy_change / abs(first_order) if first_order else math.inf


def rounding_floor(
    policy: Policy, rollouts: Rollouts, direction: Vector, sample: EntropySample
) -> RoundingFloor:
    """Measure the floor by two evaluations at ±η, on the E-batch in use.

    Args:
        policy: The policy.
        rollouts: The E-batch.
        direction: v.
        sample: The same E-batch scored at θ.

    Returns:
        The floor.

    Raises:
        ValueError: If the direction is zero.
    """
    if norm(direction) == 0:
        raise ValueError(
            "The direction is zero: there is no step whose rounding could be measured."
        )
    eta = RELATIVE_STEP * norm(policy.theta) / norm(direction)
    sides = [score(policy, rollouts, policy.parameters_along(direction, e)) for e in (eta, -eta)]
    f = sample.functional
    base = sample.series[0]

    def second_difference(omega):
        there = sum(f(omega, s.logprobs - sample.sampler_logprobs, s.entropies) for s in sides)
        return (there - 2 * f(omega, sample.log_ratios, sample.entropies))[None]

    result = infinitesimal_jackknife(second_difference, sample.prompt_index)
    spread = float((result.values[0].square() + result.standard_errors[0].square()).sqrt())
    gaps = (sides[0].logprobs + sides[1].logprobs - 2 * base.logprobs).sum(1)
    return RoundingFloor(
        log_weight=float(gaps.square().mean().sqrt()) / math.sqrt(3),
        entropy_change=spread / math.sqrt(3),
        eta=eta,
    )
