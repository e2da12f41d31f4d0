"""The step that a live optimizer is about to take: v in parts, P and η, from its .grad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from isentrope.nouns.vectors import Vector, axpy, read_numbers
from isentrope.policy.language_model import Policy
from isentrope.probe.zero_step import WholeOptimizer, ZeroStep
from isentrope.update.optimizer_rules import Preconditioning
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import follow_rule


@dataclass(frozen=True)
class ComingStep:
    """The step of the optimizer with the present gradient.

    Attributes:
        components: "momentum", "decay" and "gradient" of v; empty if the gradient is not finite,
            or P is to have second moments that are not there yet.
        preconditioner: P, of the gradient as it is in .grad, clipping done.
        learning_rate: η.
        gradient: The gradient of the loss, in .grad.
        first: Whether P has second moments of this gradient alone.
    """

    components: dict[str, Vector]
    preconditioner: Vector
    learning_rate: float
    gradient: Vector
    first: bool = False

    @property
    def direction(self) -> Vector:
        """The whole of v."""
        parts = self.components
        return axpy(1.0, axpy(1.0, parts["momentum"], parts["decay"]), parts["gradient"])


class StepControl(Protocol):
    """A control that adds a part of its own to an optimizer's step.

    Attributes:
        component: λu of the step about to be taken or just taken, per unit learning rate; None
            where there is none.
    """

    component: Vector | None


def coming_step(
    policy: Policy,
    optimizer: Any,
    who: str = "the entropy probe",
    preconditioning: Preconditioning = "this_step",
) -> ComingStep:
    """Follow the optimizer's rule by one step, without taking it.

    Args:
        policy: The live policy, its parameters' .grad final.
        optimizer: Its optimizer, with or without accelerate's wrapper.
        who: Name of the caller, for the error.
        preconditioning: Which second moments P has; those of before the first step are none.

    Returns:
        The step.

    Raises:
        ValueError: If a parameter has no gradient on this process, or the rule is not known.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # below accelerate's wrapper
    state = load_optimizer_state(policy, inner)
    given = inner.gradients if isinstance(inner, WholeOptimizer) else {}
    parameters = {n: policy.model.get_parameter(n) for n in policy.names}
    gradient = {n: given.get(p, p.grad) for n, p in parameters.items()}
    idle = [n for n, g in gradient.items() if g is None]
    if idle:
        raise ValueError(
            f"Parameter {idle[0]!r} has no gradient on this process: {who} needs "
            "whole gradients (no FSDP, no ZeRO) of every trainable parameter."
        )
    whole: Vector = {n: cast(Tensor, g).double() for n, g in gradient.items()}
    fresh = state.rule != "sgd" and not all(state.moments.values())
    unknown = fresh and preconditioning == "previous_step"
    if unknown or not all(read_numbers(g.isfinite().all() for g in whole.values())):
        return ComingStep({}, {}, state.learning_rate, whole)
    parts = follow_rule(policy, state, whole, preconditioning=preconditioning)
    return ComingStep(*parts, state.learning_rate, whole, fresh)


def moving_parts(
    policy: Policy,
    optimizer: Any,
    control: StepControl | None,
    preconditioning: Preconditioning = "this_step",
    zero_step: ZeroStep | None = None,
) -> tuple[dict[str, Vector], float]:
    """Parts of the coming step that are not zero, a control's among them, and η.

    Args:
        policy: The live policy.
        optimizer: Its optimizer; None if DeepSpeed skipped the step.
        control: The step control, if there is one.
        preconditioning: As in `coming_step`.
        zero_step: The step if DeepSpeed has taken it, whose rounding is a part of its own.

    Returns:
        Part by name, none if `coming_step` has none; and the learning rate.
    """
    if optimizer is None:
        return {}, 0.0
    coming = coming_step(policy, optimizer, preconditioning=preconditioning)
    parts = dict(coming.components)
    if parts and zero_step is not None:
        as_taken = preconditioning == "this_step"
        taken = coming.components if as_taken else coming_step(policy, optimizer).components
        parts["rounding"] = zero_step.rounding(policy, taken, coming.learning_rate)
    if parts and control is not None and control.component is not None:
        parts["control"] = control.component
    moves = read_numbers(
        torch.stack([x.any() for x in part.values()]).any() for part in parts.values()
    )
    moving = {name: part for (name, part), any_ in zip(parts.items(), moves, strict=True) if any_}
    return moving, coming.learning_rate
