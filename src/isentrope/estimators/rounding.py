"""The rounding floor of ΔH, measured (T13).

Along a short step the fourth difference

    S(2η) − 4 S(η) + 6 S(0) − 4 S(−η) + S(−2η)  =  η⁴ S'''' + …

holds neither slope nor curvature: the remainder is rounding noise of the evaluations only, of
variance 70σ² if one has variance σ². A log-weight, a difference of two evaluations, has √2 σ. The
same difference of F is the floor of ΔH itself.

It does not include the rounding of θ ± ηv: the two errors are nearly opposite, and cancel. With u
the unit roundoff of a parameter's type, the actual step differs from v by

    |round(θ + ηv) − θ − ηv| ≤ min(η|v|, u|θ|)          (and u η|v|, which is nothing)

in each parameter, and this is a bias of δH₁ that no spread reveals. So the smallest η is also one
at which ‖min(|v|, u|θ|/η)‖ is at most a hundredth of ‖v‖.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score

RELATIVE_STEP = 1e-6
"""‖ηv‖ / ‖θ‖ of the probing step. In float32 the parameters round much of it away, which does no
harm here: in both directions alike."""

DIFFERENCE = {2: 1, 1: -4, -1: -4, -2: 1}
"""Weights of S at multiples of η; that of S(0) is minus their sum."""

NOISE = math.sqrt(35)
"""Standard deviation of the difference, √70 σ, in those of a log-weight, √2 σ."""

MAX_ROUNDING_LOSS = 0.01
"""Share of v that rounding the parameters may change."""


@dataclass(frozen=True)
class RoundingFloor:
    """Noise that rounding alone puts on the numbers.

    Attributes:
        log_weight: Root mean square noise of a sequence's log-weight, nats per sequence.
        entropy_change: Noise of ΔH, in the unit of the functional.
        eta: The probing step's η.
        parameter_eta: Smallest η, to a factor of 2, from which on rounding the parameters θ + ηv
            changes v by at most 1 %.
    """

    log_weight: float
    entropy_change: float
    eta: float
    parameter_eta: float

    def smallest_eta(self, first_order: float) -> float:
        """Smallest η at which |ηδH₁| is at least three floors, and θ + ηv the step.

        Args:
            first_order: δH₁ per unit η.

        Returns:
            η; infinite if δH₁ is 0.
        """
        if not first_order:
            return math.inf
        return max(3 * self.entropy_change / abs(first_order), self.parameter_eta)


def rounding_floor(
    policy: Policy, rollouts: Rollouts, direction: Vector, sample: ScoredBatch
) -> RoundingFloor:
    """Measure the floor by four evaluations near θ, on the E-batch in use.

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
    near = [
        (weight, score(policy, rollouts, policy.parameters_along(direction, k * eta)))
        for k, weight in DIFFERENCE.items()
    ]
    at_theta = -sum(DIFFERENCE.values())
    f = sample.functional
    base = sample.series[0]

    def difference(omega: Tensor) -> Tensor:
        here = at_theta * f(omega, sample.log_ratios, sample.entropies)
        there = (
            weight * f(omega, s.logprobs - sample.sampler_logprobs, s.entropies)
            for weight, s in near
        )
        return sum(there, here)[None]

    result = infinitesimal_jackknife(difference, sample.prompt_index)
    spread = float((result.values[0].square() + result.standard_errors[0].square()).sqrt())
    gaps = sum((w * s.logprobs for w, s in near), at_theta * base.logprobs).sum(1)
    return RoundingFloor(
        log_weight=float(gaps.square().mean().sqrt()) / NOISE,
        entropy_change=spread / NOISE,
        eta=eta,
        parameter_eta=_parameter_eta(policy.theta, direction),
    )


def _parameter_eta(theta: Vector, direction: Vector) -> float:
    """Smallest η at which ‖min(|v|, u|θ|/η)‖ ≤ 1 % of ‖v‖; 0 where θ is 0 in what v moves."""
    size = {n: v.double().abs() for n, v in direction.items()}
    most = MAX_ROUNDING_LOSS * norm(size)
    roundoff = {
        n: torch.finfo(p.dtype).eps / 2 * p.double().abs().to(size[n].device)
        for n, p in theta.items()
    }

    def lost(eta: float) -> float:
        return norm({n: v.minimum(roundoff[n] / eta) for n, v in size.items()})

    if norm({n: v * (roundoff[n] > 0) for n, v in size.items()}) <= most:
        return 0.0
    eta = norm(roundoff) / most  # enough, by far where v moves few parameters
    while lost(eta / 2) <= most:
        eta /= 2
    return eta
