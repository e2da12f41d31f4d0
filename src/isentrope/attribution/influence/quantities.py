"""What an influence is of (T6): entropy and expected reward, each with its gradient by groups."""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.attribution.gradients.groups import GradientGroups, entropy_groups, reward_groups
from isentrope.attribution.gradients.options import GradientOptions
from isentrope.attribution.influence.closure import require_agreement
from isentrope.estimators.functional import UNITS, Functional, Method
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.progress import Report
from isentrope.update.step import Step

TOKEN_GROUPS, SEQUENCE_GROUPS = 8, 32
"""Default groups of prompts; each costs a forward pass for tokens, none for sequences."""

MAX_GROUP_BYTES = 4 * 2**30
"""Bytes of group gradients up to which sequences have more groups than tokens."""


@dataclass(frozen=True)
class InfluenceOptions:
    """What is attributed, and with what errors.

    Attributes:
        functional: "per_token" (h) or "per_sequence" (ℋ).
        method: Estimator whose gradient is taken.
        groups: Groups of prompts for errors and reliability; None for `default_groups`.
        confidence: Nominal coverage of the intervals of the budget.
        gradients: How the gradients of sequences are computed and held.
    """

    functional: Functional = "per_token"
    method: Method = "prefix"
    groups: int | None = None
    confidence: float = 0.95
    gradients: GradientOptions = GradientOptions()


@dataclass(frozen=True)
class Quantity:
    """What is attributed.

    Attributes:
        gradient: Its gradient, by groups of prompts.
        unit: Of its change, per η.
        prompts: Prompt draws that it is measured on.
    """

    gradient: GradientGroups
    unit: str
    prompts: int


def quantities_of(
    policy: Policy,
    E: Rollouts,
    reward: Rollouts | None,
    step: Step,
    groups: int,
    options: InfluenceOptions,
    progress: Report,
) -> list[Quantity]:
    """The entropy of E, and the expected reward where rewards are given."""
    passes, v, where = 2 if reward is None else 3, step.direction, options.gradients.storage.where
    progress(0, passes, "gradient of the entropy")
    of_entropy = entropy_groups(
        policy,
        E,
        groups,
        functional=options.functional,
        method=options.method,
        direction=v,
        where=where,
    )
    _require_forward_mode(policy, of_entropy, v)
    quantities = [Quantity(of_entropy, f"{UNITS[options.functional]} per η", E.n_prompts)]
    if reward is not None:
        progress(1, passes, "gradient of the reward")
        of_reward = reward_groups(policy, reward, groups, where)
        quantities.append(Quantity(of_reward, "reward per η", reward.n_prompts))
    return quantities


def _require_forward_mode(policy: Policy, gradient: GradientGroups, direction: Vector) -> None:
    """<g_H, v> is the derivative along v that forward mode gives."""
    assert gradient.forward is not None
    by_group = gradient.along(direction)
    require_agreement(
        policy,
        "δH₁ by reverse mode (<g_H, v>) and by forward mode, on the same E,",
        float(by_group.sum()),
        gradient.forward,
        float(by_group.abs().sum()),
    )


def default_groups(policy: Policy, E: Rollouts, tokens: bool) -> int:
    """The default number of groups of prompts.

    Args:
        policy: Whose parameters a group's gradient has.
        E: The evaluation batch.
        tokens: Whether tokens are attributed, which costs a pass for each group.

    Returns:
        8 for tokens. 32 for sequences, fewer where their gradients would take more than 4 GiB. At
        most the number of prompt draws.
    """
    most = TOKEN_GROUPS
    if not tokens:
        parameters = sum(p.numel() for p in policy.theta.values())
        most = max(most, min(SEQUENCE_GROUPS, MAX_GROUP_BYTES // (8 * parameters)))
    return min(most, E.n_prompts)
