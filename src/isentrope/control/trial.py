"""One step under a control, without training: the optimizer's step on the rewritten batch.

All controls start from the same update batch and the same optimizer state, and differ in the token
weights. Their steps are compared by their effects on entropy and reward, on held-out responses
(`estimators.paired`). A token control changes only the gradient part of a step; momentum responds
over the following steps. The gradient part is therefore kept beside the whole step: it approximates
the effect of the control once momentum has adapted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from isentrope.control.base import Rewritten, TokenRule, Tokens, touched
from isentrope.control.correction import Asked, Correction, GradientMeans, correct, effects_of
from isentrope.control.gradients import ControlSample, gradient_groups, slope_along
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.update.objective import RECORDED
from isentrope.update.optimizer_state import OptimizerLike
from isentrope.update.step import Step, optimizer_step

HALVINGS = 30
"""Largest number of halvings in the search for a strength."""
CLOSE = 0.01
"""Distance from the target change at which the search ends, relative to that change."""


def on_policy_tokens(
    policy: Policy,
    U: Rollouts,
    objective: str,
    max_response_length: int | None = None,
    *,
    clip_high: float | None = None,
    micro_batch: int | None = None,
    seed: int = 0,
) -> Tokens:
    """The input of a control for the update batch at θ, where every ratio is 1.

    Args:
        policy: The policy at θ.
        U: The update batch, with rewards and advantages.
        objective: The plain objective, one of `update.objective.OBJECTIVES`.
        max_response_length: L of "dr_grpo".
        clip_high: ε_high of "cispo".
        micro_batch: Responses per backward pass of "bnpo".
        seed: Seed of the random numbers of a control.

    Returns:
        The batch, with the policy's own log-probabilities and entropies.
    """
    scores = score(policy, U)
    scored = U.with_columns(
        sampler_logprobs=U.ragged(scores.logprobs), sampler_entropies=U.ragged(scores.entropies)
    )
    options = {"clip_high": clip_high, "micro_batch": micro_batch}
    return Tokens.of(scored, objective, max_response_length, step=1, seed=seed, **options)


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
        whole: v, momentum and decay included.
        gradient: Its gradient part alone.
        numbers: Statistics of the control.
        of_gradient: The same for the gradient part, where they differ.
        reasons: Why there is no correction, or a shorter one, by "step" and "gradient".
    """

    whole: Vector
    gradient: Vector
    numbers: dict[str, float]
    of_gradient: dict[str, float] | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Step, numbers: dict[str, float]) -> Trial:
        """Make a trial of a step."""
        return cls(step.direction, step.components["gradient"], numbers)


def try_tokens(
    policy: Policy,
    U: Rollouts,
    tokens: Tokens,
    optimizer: OptimizerLike,
    control: TokenRule,
    strength: float,
    *,
    max_grad_norm: float | None = None,
    micro_batch: int | None = None,
) -> Trial:
    """The step that the optimizer would take on a batch under a token control.

    Args:
        policy: The policy at θ.
        U: The update batch.
        tokens: The same batch, from `on_policy_tokens`.
        optimizer: State before the step.
        control: The control.
        strength: Its strength.
        max_grad_norm: Norm to which the gradient is clipped; None for no clipping.
        micro_batch: Responses per backward pass in 16 bits; None for one pass.

    Returns:
        The step, with statistics of the control.
    """
    rewritten = control.rewrite(tokens, strength)
    step = optimizer_step(
        policy,
        controlled_batch(U, rewritten),
        optimizer,
        objective=RECORDED,
        max_grad_norm=max_grad_norm,
        micro_batch=micro_batch,
    )
    return Trial.of(step, touched(tokens, rewritten))


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
    zero = 0.0, change(0.0)
    ends = []
    for end in (largest, smallest):
        if end == 0:
            continue
        ends.append((end, change(end)))
        if min(zero[1], ends[-1][1]) <= target <= max(zero[1], ends[-1][1]):
            break
    else:
        changes = [at for _, at in (zero, *ends)]
        raise OutOfReachError(
            f"No strength between {smallest:.4g} and {largest:.4g} changes entropy by {target:.3g} "
            f"in one step: it gives {min(changes):.3g} to {max(changes):.3g}."
        )
    (low, at_low), (high, at_high) = zero, ends[-1]  # which enclose the target
    # a target of 0 has no relative distance: the scale is then the range of changes
    close = CLOSE * max(abs(target), CLOSE * abs(at_high - at_low))
    best = min(zero, ends[-1], key=lambda one: abs(one[1] - target))
    for _ in range(HALVINGS):
        if abs(best[1] - target) <= close:
            break
        middle = (low + high) / 2
        at = change(middle)
        if abs(at - target) < abs(best[1] - target):
            best = middle, at
        if (at < target) == (at_low < at_high):
            low = middle
        else:
            high = middle
    return best


def entropy_correction(
    policy: Policy,
    E_a: ControlSample,
    E_b: ControlSample,
    direction: Vector,
    preconditioner: Vector,
    eta: float,
    asked: Asked,
) -> Correction:
    """The correction of a step from two independent samples of E; the model does not change.

    Args:
        policy: The policy at θ.
        E_a: A sample of it, drawn apart from the batch of the step.
        E_b: Another one, independent of the first.
        direction: v.
        preconditioner: P, diagonal.
        eta: Learning rate η of the step.
        asked: The request.

    Returns:
        λ and u.
    """
    groups, means = (gradient_groups(policy, E_a), gradient_groups(policy, E_b)), GradientMeans()
    means.add(groups)
    (first, one), (second, other) = E_a.entropy(), E_b.entropy()
    entropy = (first + second) / 2
    level = {"entropy": entropy, "entropy_se": math.hypot(one, other) / 2}
    along_v = slope_along(groups[0], direction), slope_along(groups[1], direction)
    effects, u = effects_of(groups, means, along_v, preconditioner)
    correction = correct(effects, u, direction, preconditioner, eta, entropy, asked)
    return replace(correction, numbers=level | correction.numbers)
