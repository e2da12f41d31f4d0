"""A step to first order: its budget, and the edge of the frontier on which it stands.

The budget is δH₁ along each component of the step. Slopes are linear in the direction, so those
along the largest component are what the others leave of the step's: one forward-mode pass less.
Angle (T10) and frontier (T14) are of the gradients of reward and entropy, by groups of E's prompts.
"""

from dataclasses import replace

from torch import Tensor

from isentrope.attribution.frontier.edge import PROMPTS_OF_CHANGES, Edge
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.estimators.entropy_change import EntropyChange, change_of_sample
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import axpy, norm
from isentrope.policy.scoring import score_along
from isentrope.system.progress import progress
from isentrope.update.step import Step
from isentrope.verbs.prepare import Prepared

PARTS_APART = 1e-6
"""Part of the components' size by which their sum may differ from the step."""
GROUPS_OF_ANGLE = 16
"""Groups of E's prompts for the angle of the gradients of reward and entropy."""


def budget_of_step(
    ready: Prepared, change: EntropyChange
) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    """δH₁ along each component of the step, by the same F on the same samples.

    Args:
        ready: The checkpoint, at the measuring precision.
        change: The change along the whole step.

    Returns:
        The parts and their total, and the influences on them; empty without a first order.

    Raises:
        ValueError: If the components do not sum to the step.
    """
    total = change.first_order
    if total is None:
        return {}, {}
    components = ready.step.components
    remainder = ready.step.direction
    sizes = {name: norm(component) for name, component in components.items()}
    for component in components.values():
        remainder = axpy(-1.0, component, remainder)
    if not norm(remainder) <= PARTS_APART * sum(sizes.values()):
        raise ValueError(
            f"The components of the step ({', '.join(components)}) do not sum to it: "
            f"{norm(remainder):.2g} is left, of {sum(sizes.values()):.2g}."
        )
    moving = [name for name in sizes if sizes[name]]
    largest = max(sizes, key=lambda name: sizes[name])
    values, remaining, *_ = change.sample.series
    influence = change.influences["first_order"]
    zero = Estimate.exact(0.0, total.n, unit=total.unit, method=total.method)
    budget = {"total": total} | dict.fromkeys(sizes, zero)
    influences = {f"budget.{name}": 0 * influence for name in budget} | {"budget.total": influence}
    with progress().bar("budget") as report:
        for done, name in enumerate(sorted(moving, key=lambda name: name == largest)):
            report(done, len(moving), name)
            slope = remaining
            if name != largest:
                slope = score_along(ready.policy, ready.E, components[name], 1)[1]
                remaining = replace(
                    remaining,
                    logprobs=remaining.logprobs - slope.logprobs,
                    entropies=remaining.entropies - slope.entropies,
                )
            sample = replace(change.sample, series=(values, slope))
            part = change_of_sample(sample, [], [], confidence=ready.config.estimator.confidence)
            budget[name] = part.first_order or zero
            influences[f"budget.{name}"] = part.influences["first_order"]
    return budget, influences


def too_few_prompts(E: Rollouts) -> tuple[str, ...]:
    """Why E has no groups for the frontier, in a sentence; none where it has."""
    if E.n_prompts >= GROUPS_OF_ANGLE:
        return ()
    return (
        "There is no frontier of the step, and no angle of the gradients of reward and entropy: "
        f"E has {E.n_prompts} prompts, fewer than the {GROUPS_OF_ANGLE} groups that errors are "
        f"over. Set batch_config.B_E to {PROMPTS_OF_CHANGES} or more.",
    )


def edge_of(ready: Prepared, step: Step, sample: ScoredBatch, E: Rollouts) -> Edge:
    """The edge of the free parts with the length of a step's, from groups of E's prompts.

    Args:
        ready: The checkpoint.
        step: Its step, or the one without a control.
        sample: E as scored.
        E: The same, with rewards, and 16 prompts or more.

    Returns:
        The edge, with the gradients of reward and entropy in the metric of the step.
    """
    where = ready.gradients.storage.where
    P = step.preconditioner
    gradients = GradientPair.on_batch(ready.policy, E, sample, P, GROUPS_OF_ANGLE, where)
    return Edge.of_step(gradients, step)
