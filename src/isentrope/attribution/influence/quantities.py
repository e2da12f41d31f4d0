"""What an influence is of (T6): entropy and expected reward, their gradients, and their budget.

    δH₁ = <g_H, v> = <g_H, momentum> + <g_H, decay> + Σ_i δH_i

hold to rounding, and so does the part of <g_H, v> from the first group of E's prompts, taken by
forward mode. Where they do not, the gradient that autograd returns is not the derivative of the
model's output (a custom backward pass, a detached tensor), and no number from it is reported.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope.attribution.gradients.groups import GradientGroups, gradients_by_group, reward_groups
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.influence.contributions import Attribution
from isentrope.estimators.functional import EstimatorOptions
from isentrope.estimators.sample import score_batch
from isentrope.models.architecture import name_of
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.progress import Report
from isentrope.update.step import Step

CLOSURE = 1e-6
"""Largest relative gap in float64, far above its rounding and far below any standard error."""

ROUNDING_STEPS = 3e3
"""In shorter types: the gap allowed in units of the type's roundoff, as for hooks and autograd."""


def tolerance(policy: Policy) -> float:
    """Largest relative gap between two ways to a derivative that rounding explains.

    Args:
        policy: The policy.

    Returns:
        1e-6 in float64, 4e-4 in float32, 0.1 where a parameter, frozen or not, is in bfloat16.
    """
    types = {p.dtype for p in policy.model.parameters() if p.is_floating_point()}
    epsilon = max(torch.finfo(dtype).eps for dtype in types)
    return max(CLOSURE, min(ROUNDING_STEPS * epsilon, 0.1))


def require_agreement(
    policy: Policy, what: str, value: float, expected: float, scale: float
) -> None:
    """Refuse two ways to one derivative that differ by more than rounding.

    Args:
        policy: The policy.
        what: The two ways, in words.
        value: By one way.
        expected: By the other.
        scale: Size of the terms that were added.

    Raises:
        ValueError: If they differ.
    """
    gap = abs(value - expected)
    if not gap <= tolerance(policy) * max(scale, abs(expected)):
        raise ValueError(
            f"{what} differ: {value:.6g} against {expected:.6g}, {gap / (scale or 1.0):.1e} of the "
            f"terms' size where rounding explains {tolerance(policy):.0e}. A derivative of "
            f"{name_of(policy.causal_lm)} is not that of its output (a custom backward pass, a "
            "detached tensor, a kernel), so no number from it is reported: load the model "
            "with attn_implementation='eager' and without custom kernels."
        )


TOKEN_GROUPS, SEQUENCE_GROUPS = 8, 32
"""Default groups of prompts; each costs a forward pass for tokens, none for sequences."""

MAX_GROUP_BYTES = 4 * 2**30
"""Bytes of group gradients up to which sequences have more groups than tokens."""


@dataclass(frozen=True)
class InfluenceOptions(EstimatorOptions):
    """Of which entropy an influence is, and with what errors.

    Attributes:
        groups: Groups of prompts for errors and reliability; 1 for values alone; None for
            `default_groups`.
        overlap: How to treat a sequence of U that is also in E: an error ("refuse"), chance
            ("independent": E was drawn afresh), or the same batch ("u_statistic").
        gradients: How the gradients of sequences are computed and held.
    """

    groups: int | None = None
    overlap: Literal["refuse", "independent", "u_statistic"] = "refuse"
    gradients: GradientOptions = GradientOptions()


def quantities_of(
    policy: Policy,
    E: Rollouts,
    reward: Rollouts | None,
    step: Step,
    groups: int,
    options: InfluenceOptions,
    progress: Report,
) -> list[GradientGroups]:
    """The gradients of the entropy of E, and of the expected reward where rewards are given."""
    where, shared = options.gradients.storage.where, reward is not None and reward is E
    passes = 2 + (reward is not None and not shared)
    progress(0, passes, "gradient of the entropy" + " and of the reward" * shared)
    sample = score_batch(policy, E, functional=options.functional, method=options.method)
    found = gradients_by_group(
        policy, E, sample, groups, where, direction=step.direction, reward=shared
    )
    assert found[0].first is not None
    modes = "δH₁ by reverse mode (<g_H, v>) and by forward mode, on the first group of E,"
    require_agreement(policy, modes, *found[0].first)
    if reward is not None and not shared:
        progress(1, passes, "gradient of the reward")
        found.append(reward_groups(policy, reward, groups, where))
    return found


def attribute(
    policy: Policy,
    step: Step,
    gradient: GradientGroups,
    sequences: Tensor,
    tokens: Tensor | None,
    options: InfluenceOptions,
) -> Attribution:
    """The effect of each sequence on a quantity, and its budget.

    Args:
        policy: For its precision.
        step: The step, with its components.
        gradient: Of what changes.
        sequences: (G, n) by group of the prompts that it is measured on.
        tokens: (G, n, t) the same of tokens; None where they were not requested.
        options: For a U-statistic the total too omits the pairs of one prompt draw.

    Returns:
        The attribution, whose parts sum to the total.
    """
    own = sequences.sum(1)
    momentum, decay, update = (
        gradient.along(step.components[name]) for name in ("momentum", "decay", "gradient")
    )
    columns = {  # (G,) each
        "momentum": momentum,
        "decay": decay,
        "baseline": momentum + decay,
        "gradient": own,
        "total": momentum + decay + (own if options.overlap == "u_statistic" else update),
    }
    budget = {name: gradient.estimate(x, options.confidence) for name, x in columns.items()}
    found = Attribution(sequences, tokens, budget, gradient)
    total, bases = budget["total"].value, (budget["momentum"].value, budget["decay"].value)
    require_agreement(
        policy,
        "The parts of the budget (momentum, decay, sequences) and its total",
        total + found.closure,
        total,
        sum(map(abs, bases)) + float(found.sequences.abs().sum()),
    )
    return found


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
