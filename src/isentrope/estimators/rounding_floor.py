"""The rounding floor of ΔH: noise that arithmetic alone puts on it (T13).

It is measured. Along a short step the fourth difference

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

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import ScoredBatch
from isentrope.models.float_types import ROUNDING_BOUNDS
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm, root_mean_square
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score

RELATIVE_STEP = 1e-6
"""‖ηv‖ / ‖θ‖ of the probing step. In float32 the parameters round much of it away, which does no
harm here: in both directions alike."""

FOURTH_DIFFERENCE = {2: 1, 1: -4, -1: -4, -2: 1}
"""Weights of S at multiples of η; that of S(0) is minus their sum."""

DIFFERENCE_NOISE = math.sqrt(35)
"""Standard deviation of the difference, √70 σ, in those of a log-weight, √2 σ."""

CURVATURE_FALL = 0.1
"""At a tenth of the step curvature falls to 1e-4 of itself, and rounding to .3 at least."""

FINER = 4
"""Times that the probing step may be divided by ten: float64 then still resolves it."""

MAX_ROUNDING_LOSS = 0.01
"""Share of v that rounding the parameters may change."""


@dataclass(frozen=True)
class RoundingFloor:
    """Noise that rounding alone puts on the numbers.

    Attributes:
        log_weight: Root mean square noise of a sequence's log-weight, nats per sequence.
        entropy_change: Noise of ΔH, in the unit of the functional.
        smallest_eta: Smallest η at which |ηδH₁| is at least three floors, and rounding the
            parameters θ + ηv changes v by at most 1 % (to a factor of 2); infinite if δH₁ is 0,
            None where it is not known.
    """

    log_weight: float
    entropy_change: float
    smallest_eta: float | None


def rounding_floor(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    sample: ScoredBatch,
    first_order: float | None = None,
) -> RoundingFloor:
    """Measure the floor by four evaluations near θ, on the E-batch in use.

    In float64 a floor beyond its bound is measured again at a tenth of the step for as long as it
    falls as curvature does, and rounding does not.

    Args:
        policy: The policy.
        rollouts: The E-batch.
        direction: v.
        sample: The same E-batch scored at θ.
        first_order: δH₁ per unit η, where it is known.

    Returns:
        The floor.

    Raises:
        ValueError: If the direction is zero.
    """
    if norm(direction) == 0:
        raise ValueError(
            "The direction is zero: there is no step whose rounding could be measured."
        )
    size = norm(policy.theta) or 1.0
    eta = RELATIVE_STEP * size / norm(direction)
    noise, change = _evaluate_fourth_difference(policy, rollouts, direction, sample, eta)
    exact = policy.precision.runtime_dtype == "float64"
    for _ in range(FINER if exact else 0):
        if noise <= ROUNDING_BOUNDS[torch.float64].log_weight:
            break
        eta /= 10
        finer_noise, finer_change = _evaluate_fourth_difference(
            policy, rollouts, direction, sample, eta
        )
        if finer_noise > CURVATURE_FALL * noise:
            break
        noise = finer_noise
        change = finer_change
    smallest = first_order and max(
        3 * change / abs(first_order), _find_eta_that_parameters_resolve(policy.theta, direction)
    )
    return RoundingFloor(
        log_weight=noise,
        entropy_change=change,
        smallest_eta=math.inf if smallest == 0 else smallest,
    )


def _evaluate_fourth_difference(
    policy: Policy, rollouts: Rollouts, direction: Vector, sample: ScoredBatch, eta: float
) -> tuple[float, float]:
    """Noise of a log-weight, and of ΔH, by the fourth difference at a step η."""
    scores = [(-sum(FOURTH_DIFFERENCE.values()), sample.series[0])]
    for k, weight in FOURTH_DIFFERENCE.items():
        moved_scores = score(policy, rollouts, policy.parameters_along(direction, k * eta))
        scores.append((weight, moved_scores))

    def difference(omega: Tensor) -> Tensor:
        values = [
            weight * sample.functional(omega, s.logprobs - sample.sampler_logprobs, s.entropies)
            for weight, s in scores
        ]
        return torch.stack(values).sum(0, keepdim=True)

    result = infinitesimal_jackknife(difference, sample.prompt_index)
    change = math.hypot(float(result.values[0]), float(result.standard_errors[0]))
    gaps = torch.stack([weight * s.logprobs for weight, s in scores]).sum((0, 2))
    return root_mean_square(gaps) / DIFFERENCE_NOISE, change / DIFFERENCE_NOISE


def _find_eta_that_parameters_resolve(theta: Vector, direction: Vector) -> float:
    """Smallest η at which ‖min(|v|, u|θ|/η)‖ ≤ 1 % of ‖v‖; 0 where θ is 0 in what v moves."""
    size = {n: v.double().abs() for n, v in direction.items()}
    allowed = MAX_ROUNDING_LOSS * norm(size)
    roundoff = {
        n: torch.finfo(p.dtype).eps / 2 * p.double().abs().to(size[n].device)
        for n, p in theta.items()
    }

    def lost(eta: float) -> float:
        return norm({n: v.minimum(roundoff[n] / eta) for n, v in size.items()})

    # where θ is 0 nothing is lost, however small η is
    if norm({n: v.where(roundoff[n] > 0, 0.0) for n, v in size.items()}) <= allowed:
        return 0.0
    eta = norm(roundoff) / allowed  # enough, by far where v moves few parameters
    while lost(eta / 2) <= allowed:
        eta /= 2
    return eta
