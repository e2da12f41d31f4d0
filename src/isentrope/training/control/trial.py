"""One step under a control, without training: what the optimizer would do with the rewritten batch.

The same update batch, the same optimizer state, other token weights: so the steps of several
controls are compared by what they do to entropy and to reward, on responses that none of them has
seen (`estimators.paired`). A token control reaches only the gradient part of a step; momentum
answers over the following steps. So the gradient part is kept beside the whole step: it is what the
control would do once momentum had followed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.rollouts import Rollouts
from isentrope.training.control.base import TokenRule
from isentrope.training.control.tokens import Rewritten, Tokens, touched
from isentrope.update.objective import RECORDED
from isentrope.update.optimizer_state import OptimizerLike
from isentrope.update.step import Step, optimizer_step
from isentrope.vectors import Vector

HALVINGS = 30
"""Halvings of the interval after which the search for a strength ends."""
CLOSE = 0.01
"""Distance from the wanted change at which it ends, relative to that change."""


def on_policy_tokens(
    policy: Policy,
    U: Rollouts,
    objective: str,
    max_response_length: int | None = None,
    *,
    seed: int = 0,
) -> Tokens:
    """The update batch as a control sees it at θ, where every ratio is 1.

    Args:
        policy: The policy at θ.
        U: The update batch, with rewards and advantages.
        objective: The plain objective, one of `update.objective.OBJECTIVES`.
        max_response_length: L of "dr_grpo".
        seed: Fixes what a control draws at random.

    Returns:
        The batch, with the policy's own log-probabilities and entropies.
    """
    scores = score(policy, U)
    columns = {
        "sampler_logprobs": ragged(scores.logprobs, U),
        "sampler_entropies": ragged(scores.entropies, U),
    }
    return Tokens.of(U.with_columns(**columns), objective, max_response_length, step=1, seed=seed)


def controlled_batch(U: Rollouts, made: Rewritten) -> Rollouts:
    """The batch with the weights that a control gave it, for objective "recorded".

    Args:
        U: The update batch.
        made: What the control made of it.

    Returns:
        A copy with token weights and, where there are any, entropy weights.
    """
    d = made.entropy_weights
    return U.with_columns(
        token_weights=ragged(made.weights, U),
        entropy_weights=None if d is None else ragged(d, U),
    )


def ragged(values: Tensor, rollouts: Rollouts) -> list[Tensor]:
    """The rows of a padded column, each as long as its response.

    Args:
        values: (n, t).
        rollouts: n sequences.

    Returns:
        n 1-D tensors.
    """
    lengths = rollouts.lengths.tolist()
    return [row[:length] for row, length in zip(values, lengths, strict=True)]


@dataclass(frozen=True)
class Trial:
    """A step under a control.

    Attributes:
        whole: v, momentum and decay included.
        gradient: Its gradient part alone.
        numbers: What the control did.
        of_gradient: The same of the gradient part, where it is not the same.
        reasons: Why there is no correction, or a shorter one, by "step" and "gradient".
    """

    whole: Vector
    gradient: Vector
    numbers: dict[str, float]
    of_gradient: dict[str, float] | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Step, numbers: dict[str, float]) -> Trial:
        """Of a step that the optimizer would take.

        Args:
            step: The step.
            numbers: What the control did.

        Returns:
            The trial.
        """
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
) -> Trial:
    """The step that the optimizer would take on a batch under a token control.

    Args:
        policy: The policy at θ.
        U: The update batch.
        tokens: The same batch as `on_policy_tokens` gives it.
        optimizer: State before the step.
        control: The control.
        strength: How hard it acts.
        max_grad_norm: Largest gradient norm let through.

    Returns:
        The step and what was done to the batch.
    """
    made = control.rewrite(tokens, strength)
    step = optimizer_step(
        policy,
        controlled_batch(U, made),
        optimizer,
        objective=RECORDED,
        max_grad_norm=max_grad_norm,
    )
    return Trial.of(step, touched(tokens, made))


class OutOfReachError(ValueError):
    """No strength that may be tried changes entropy by the wanted amount."""


def strength_for(
    wanted: float, change: Callable[[float], float], largest: float, smallest: float = 0.0
) -> tuple[float, float]:
    """The strength at which a step changes entropy by a wanted amount, by bisection.

    Args:
        wanted: The change of entropy.
        change: The change at a strength, predicted to first order; continuous or in small steps.
        largest: Largest strength that may be tried; the search starts from 0.
        smallest: Smallest one: 0, or below 0 for a control that acts both ways.

    Returns:
        The strength, and the change predicted at it.

    Raises:
        OutOfReachError: If no strength between them gives the change; it says what they do give.
    """
    zero = 0.0, change(0.0)
    ends = []
    for end in (largest, smallest):
        if end == 0:
            continue
        ends.append((end, change(end)))
        if min(zero[1], ends[-1][1]) <= wanted <= max(zero[1], ends[-1][1]):
            return _bisected(wanted, change, zero, ends[-1])
    given = [at for _, at in (zero, *ends)]
    raise OutOfReachError(
        f"No strength between {smallest:.4g} and {largest:.4g} changes entropy by {wanted:.3g} in "
        f"one step: it gives {min(given):.3g} to {max(given):.3g}."
    )


def _bisected(
    wanted: float,
    change: Callable[[float], float],
    start: tuple[float, float],
    end: tuple[float, float],
) -> tuple[float, float]:
    """Between two strengths whose changes have the wanted one between them."""
    (low, at_low), (high, at_high) = start, end
    # a wanted change of 0 has no relative distance: it is met on the scale of what can be had
    close = CLOSE * max(abs(wanted), CLOSE * abs(at_high - at_low))
    best = min(start, end, key=lambda one: abs(one[1] - wanted))
    for _ in range(HALVINGS):
        if abs(best[1] - wanted) <= close:
            break
        middle = (low + high) / 2
        at = change(middle)
        if abs(at - wanted) < abs(best[1] - wanted):
            best = middle, at
        if (at < wanted) == (at_low < at_high):
            low = middle
        else:
            high = middle
    return best
