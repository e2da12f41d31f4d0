"""The step that a live optimizer is about to take: v in parts, P and η, from its .grad.

Under ZeRO it is looked at when it was taken (`partitioned_step`).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from isentrope.nouns.choices import Preconditioning
from isentrope.nouns.vectors import Vector, axpy
from isentrope.parallel.sharded import read_numbers
from isentrope.policy.language_model import Policy
from isentrope.probe.partitioned_step import PartitionedStep
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import follow_rule

NO_MOMENTS = "the optimizer has no second moments before its first step"


@dataclass(frozen=True)
class ComingStep:
    """The step of the optimizer with the present gradient.

    Attributes:
        components: "momentum", "decay" and "gradient" of v; empty if the step is not known.
        preconditioner: P, of the gradient as it is in .grad, clipping done.
        learning_rate: η.
        first: Whether P has second moments of this gradient alone.
        unknown: Why the step is not known; empty if it is.
    """

    components: dict[str, Vector]
    preconditioner: Vector
    learning_rate: float
    first: bool = False
    unknown: str = ""

    @property
    def direction(self) -> Vector:
        """The whole of v."""
        parts = self.components
        return axpy(1.0, axpy(1.0, parts["momentum"], parts["decay"]), parts["gradient"])


def coming_step(
    policy: Policy,
    optimizer: Any,
    preconditioning: Preconditioning = "this_step",
) -> ComingStep:
    """Follow the optimizer's rule by one step, without taking it.

    Args:
        policy: The live policy, its parameters' .grad final.
        optimizer: Its optimizer, with or without accelerate's wrapper; or DeepSpeed's step.
        preconditioning: Which second moments P has; those of before the first step are none.

    Returns:
        The step.

    Raises:
        ValueError: If no parameter has a gradient on this process, or the rule is not known.
    """
    state = load_optimizer_state(policy, getattr(optimizer, "optimizer", optimizer))
    gathered = optimizer.gradient if isinstance(optimizer, PartitionedStep) else {}
    gradients: Vector = {}
    skipped: list[str] = []
    for name, theta in policy.theta.items():
        gradient = gathered.get(name, policy.model.get_parameter(name).grad)
        if gradient is None:
            skipped.append(name)
            gradients[name] = torch.zeros_like(theta).double()
        else:
            gradients[name] = gradient.double()
    if len(skipped) == len(gradients):
        raise ValueError(
            f"Parameter {skipped[0]!r} has no gradient on this process, nor has any other: the "
            "entropy probe and an entropy budget need whole gradients (no FSDP, no ZeRO)."
        )
    # torch skips them, with their momentum and decay, and begins a state for others
    state = replace(state, untrained=frozenset(skipped))
    moments = [entries for name, entries in state.moments.items() if name not in skipped]
    fresh = state.rule != "sgd" and not all(moments)
    unknown = ""
    if fresh and preconditioning == "previous_step":
        unknown = NO_MOMENTS
    elif not all(read_numbers(g.isfinite().all() for g in gradients.values())):
        unknown = "its gradient is not finite"
    if unknown:
        return ComingStep({}, {}, state.learning_rate, unknown=unknown)
    parts = follow_rule(policy, state, gradients, preconditioning=preconditioning)
    return ComingStep(*parts, state.learning_rate, fresh)


def moving_parts(
    policy: Policy,
    optimizer: Any,
    control: Any,
    preconditioning: Preconditioning = "this_step",
) -> tuple[dict[str, Vector], float, str]:
    """Parts of the coming step that are not zero, a control's among them, and η.

    Args:
        policy: The live policy.
        optimizer: Its optimizer; or DeepSpeed's step, whose rounding is a part of its own, None if
            it was skipped.
        control: The step control, whose `component` is its λu in this step; None for none.
        preconditioning: As in `coming_step`.

    Returns:
        Part by name; the learning rate; and why there are no parts, empty if there are some.
    """
    if optimizer is None:
        return {}, 0.0, "DeepSpeed skipped it (its gradient is not finite)"
    coming = coming_step(policy, optimizer, preconditioning)
    parts = dict(coming.components)
    eta = coming.learning_rate
    if coming.unknown:
        return {}, eta, coming.unknown
    if eta == 0:
        return {}, eta, "its learning rate is 0"
    if isinstance(optimizer, PartitionedStep):
        as_taken = coming
        if preconditioning != "this_step":
            as_taken = coming_step(policy, optimizer)
        parts["rounding"] = optimizer.rounding(policy, as_taken.direction, eta)
    if control is not None and control.component is not None:
        parts["control"] = control.component
    parts = {name: part for name, part in parts.items() if part}
    are_moving = read_numbers(
        torch.stack([x.any() for x in part.values()]).any() for part in parts.values()
    )
    moving = {
        name: part
        for (name, part), is_moving in zip(parts.items(), are_moving, strict=True)
        if is_moving
    }
    return moving, eta, "" if moving else "it moves no parameter"
