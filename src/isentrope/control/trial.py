"""One step under a control, without training: the optimizer's step on the rewritten batch.

All controls start from the same update batch and the same optimizer state, and differ in the token
weights. Their steps are compared by their effects on entropy and reward, on held-out responses
(`estimators.paired`). A token control changes only the gradient part of a step; momentum responds
over the following steps. The gradient part is therefore kept beside the whole step: it approximates
the effect of the control once momentum has adapted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scipy.optimize import bisect

from isentrope.control.base import Rewritten
from isentrope.control.correction import (
    Correction,
    Request,
    correct,
    effects_of,
)
from isentrope.control.gradient_means import GradientMeans
from isentrope.control.gradients import ControlSample, gradient_groups, slope_along
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score

HALVINGS = 30
"""Largest number of halvings in the search for a strength."""
CLOSE = 0.01
"""Distance from the target change at which the search ends, relative to that change."""


def on_policy(policy: Policy, U: Rollouts) -> Rollouts:
    """The update batch with the policy's own log-probabilities and entropies: every ratio is 1."""
    scores = score(policy, U)
    return U.with_columns(
        sampler_logprobs=U.ragged(scores.logprobs), sampler_entropies=U.ragged(scores.entropies)
    )


def controlled_batch(U: Rollouts, rewritten: Rewritten) -> Rollouts:
    """A copy of the batch with the weights of a control, for objective "recorded"."""
    d = rewritten.entropy_weights
    return U.with_columns(
        token_weights=U.ragged(rewritten.weights),
        entropy_weights=None if d is None else U.ragged(d),
    )


@dataclass(frozen=True)
class Trial:
    """A step under a control.

    Attributes:
        direction: v, momentum and decay included.
        gradient: Its gradient part alone.
        numbers: Statistics of the control.
        gradient_numbers: The same for the gradient part, where they differ.
        reasons: Why there is no correction, or a shorter one, by "step" and "gradient".
    """

    direction: Vector
    gradient: Vector
    numbers: dict[str, float]
    gradient_numbers: dict[str, float] | None = None
    reasons: dict[str, str] = field(default_factory=dict)


class OutOfReachError(ValueError):
    """No strength within the bounds changes entropy by the target amount."""


def strength_for(
    target: float, change: Callable[[float], float], largest: float, smallest: float = 0.0
) -> tuple[float, float]:
    """The strength at which a step changes entropy by a target amount, by bisection.

    Args:
        target: The target change of entropy.
        change: The change at a strength, predicted to first order; continuous or in small steps.
        largest: Upper bound of the strength; the search starts from 0.
        smallest: Lower bound: 0, or below 0 for a two-sided control.

    Returns:
        The strength, and the change predicted at it.

    Raises:
        OutOfReachError: If no strength between the bounds gives the change; the message has the
            range of changes that they give.
    """
    start = change(0.0)
    changes = {0.0: start}
    for end in (x for x in (largest, smallest) if x):
        changes[end] = change(end)
        if min(start, changes[end]) <= target <= max(start, changes[end]):
            break
    else:
        raise OutOfReachError(
            f"No strength between {smallest:.4g} and {largest:.4g} changes entropy by {target:.3g} "
            f"in one step: it gives {min(changes.values()):.3g} to {max(changes.values()):.3g}."
        )
    # a target of 0 has no relative distance: the scale is then the range of changes
    close = CLOSE * max(abs(target), CLOSE * abs(changes[end] - start))

    def gap(strength: float) -> float:
        if strength not in changes:
            changes[strength] = change(strength)
        distance = changes[strength] - target
        return distance if abs(distance) > close else 0.0

    bisect(gap, 0.0, end, maxiter=HALVINGS, full_output=True, disp=False)
    return min(changes.items(), key=lambda pair: abs(pair[1] - target))


def entropy_corrections(
    policy: Policy,
    samples: Sequence[ControlSample],
    directions: Sequence[Vector],
    P: Vector,
    eta: float,
    request: Request,
) -> list[Correction]:
    """The corrections of steps from two independent samples of E; the model does not change.

    Args:
        policy: The policy at θ.
        samples: Two samples of it, drawn apart from the batch of the steps and from each other.
        directions: v of each step.
        P: The preconditioner of all, diagonal.
        eta: Learning rate η.
        request: The change to achieve, and its bounds.

    Returns:
        λ and u of each step.
    """
    g_a, g_b = (gradient_groups(policy, E) for E in samples)
    means = GradientMeans()
    means.add((g_a, g_b))
    (entropy_a, se_a), (entropy_b, se_b) = (E.entropy() for E in samples)
    entropy = (entropy_a + entropy_b) / 2
    level = {"entropy": entropy, "entropy_se": math.hypot(se_a, se_b) / 2}
    corrections: list[Correction] = []
    for v in directions:
        effects, u = effects_of((g_a, g_b), means, (slope_along(g_a, v), slope_along(g_b, v)), P)
        correction = correct(effects, u, v, P, eta, entropy, request)
        corrections.append(replace(correction, numbers=level | correction.numbers))
    return corrections
