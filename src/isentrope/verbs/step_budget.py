"""The budget of a step: δH₁ along each of its components, which sum to that of the step.

Slopes are linear in the direction, so those along the largest component are what the others leave
of the step's: one forward-mode pass less.
"""

from dataclasses import replace

from torch import Tensor

from isentrope.estimators.entropy_change import EntropyChange, change_of_sample
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.vectors import axpy, norm
from isentrope.policy.scoring import score_along
from isentrope.system.progress import progress
from isentrope.verbs.prepare import Prepared

PARTS_APART = 1e-6
"""Part of the components' size by which their sum may differ from the step."""


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
    rest = ready.step.direction
    sizes = {name: norm(component) for name, component in components.items()}
    for component in components.values():
        rest = axpy(-1.0, component, rest)
    if not norm(rest) <= PARTS_APART * sum(sizes.values()):
        raise ValueError(
            f"The components of the step ({', '.join(components)}) do not sum to it: "
            f"{norm(rest):.2g} is left, of {sum(sizes.values()):.2g}."
        )
    moving = [name for name in sizes if sizes[name]]
    largest = max(sizes, key=lambda name: sizes[name])
    values, left, *_ = change.sample.series
    whole = change.influences["first_order"]
    zero = Estimate.exact(0.0, total.n, unit=total.unit, method=total.method)
    budget = {"total": total} | dict.fromkeys(sizes, zero)
    influences = {f"budget.{name}": 0 * whole for name in budget} | {"budget.total": whole}
    with progress().bar("budget") as report:
        for done, name in enumerate(sorted(moving, key=lambda name: name == largest)):
            report(done, len(moving), name)
            slope = left
            if name != largest:
                slope = score_along(ready.policy, ready.E, components[name], 1)[1]
                left = replace(
                    left,
                    logprobs=left.logprobs - slope.logprobs,
                    entropies=left.entropies - slope.entropies,
                )
            sample = replace(change.sample, series=(values, slope))
            part = change_of_sample(sample, [], [], confidence=ready.config.estimator.confidence)
            budget[name] = part.first_order or zero
            influences[f"budget.{name}"] = part.influences["first_order"]
    return budget, influences
