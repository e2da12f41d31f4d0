"""The step that a live optimizer is about to take: v in parts, P and η, from its .grad.

Under ZeRO stages 1 and 2 it is looked at when it was taken. DeepSpeed holds gradient and moments of
a param group as one flat vector, of which each process has a part, and takes the step inside of the
backward pass. So θ is kept when the step begins, and each part as DeepSpeed's optimizer is about to
use it, clipped and unscaled. Afterwards the parts are gathered, and θ is put back for as long as
the step is read.
"""

from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isentrope.nouns.vectors import Vector, axpy, read_numbers
from isentrope.policy.language_model import Policy
from isentrope.system.processes import gather, together
from isentrope.trainers.convert.gathered import split_flat
from isentrope.update.optimizer_rules import Preconditioning
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import follow_rule


def zero_optimizer(optimizer: Any) -> Any:
    """DeepSpeed's optimizer of stage 1 or 2, given itself or in accelerate's wrapper; else None."""
    for candidate in (optimizer, getattr(optimizer, "optimizer", None)):
        if hasattr(candidate, "single_partition_of_fp32_groups"):
            return candidate
    return None


class WholeOptimizer(torch.optim.Optimizer):
    """Param groups and state of an optimizer whose parts were gathered; it takes no steps.

    Attributes:
        gradients: What the step used, by parameter, float32.
    """

    def __init__(
        self, groups: list[dict[str, Any]], state: Mapping[nn.Parameter, dict[str, Any]]
    ) -> None:
        """Groups with all their settings; "grad" of each parameter, and what is remembered."""
        super().__init__(groups, {})
        self.gradients = {p: of_p.pop("grad") for p, of_p in state.items()}
        remembered: dict[Tensor, Any] = {p: of_p for p, of_p in state.items() if of_p}
        self.state = defaultdict(dict, remembered)


class ZeroStep:
    """One step: its θ, and what the optimizer used."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """Begin to keep what the next step uses.

        Args:
            model: The model without DeepSpeed's wrapper.
            optimizer: DeepSpeed's, by `zero_optimizer`.
        """
        self._zero = optimizer
        self._names = {p: name for name, p in model.named_parameters()}
        self._theta = {p: p.detach().clone() for p in self._names if p.requires_grad}
        self._parts: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._hook = self._zero.optimizer.register_step_pre_hook(self._keep)

    def _keep(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            (flat,) = group["params"]
            if flat.grad is None:
                continue
            used = {"grad": flat.grad, **optimizer.state.get(flat, {})}
            kept = {k: x.detach().clone() if isinstance(x, Tensor) else x for k, x in used.items()}
            self._parts[id(flat)] = {k: x for k, x in group.items() if k != "params"}, kept

    @contextmanager
    def at_start(self) -> Generator[WholeOptimizer | None]:
        """A block in which the model is at θ again. All processes must enter it.

        Yields:
            The optimizer before the step; None if DeepSpeed skipped it (overflow).
        """
        self._hook.remove()
        groups = self._zero.optimizer.param_groups
        skipped = any(id(group["params"][0]) not in self._parts for group in groups)
        if any(gather(skipped)):
            yield None
            return
        self._after = together(lambda: {p: p.detach().clone() for p in self._theta})
        wholes = [self._gathered(k, group) for k, group in enumerate(groups)]
        state = {p: x for of_group, _ in wholes for p, x in of_group.items()}
        try:
            for p, theta in self._theta.items():
                p.data.copy_(theta)
            yield WholeOptimizer([group for _, group in wholes], state)
        finally:
            for p, moved in self._after.items():
                p.data.copy_(moved)

    def rounding(self, policy: Policy, components: Mapping[str, Vector], eta: float) -> Vector:
        """What rounding to the weights' type adds to the step, per unit learning rate.

        Args:
            policy: The live policy, at θ.
            components: The step that was taken, v, in parts.
            eta: η.

        Returns:
            (θ' − θ)/η − v by parameter; empty where all weights are float32 or longer, or η is 0.
        """
        short = {n: policy.model.get_parameter(n) for n in policy.names}
        if eta == 0 or all(p.dtype in (torch.float32, torch.float64) for p in short.values()):
            return {}
        moved = {n: self._after[p].double() - p.detach().double() for n, p in short.items()}
        return {
            n: x / eta - sum((part[n].double() for part in components.values()), x.new_zeros(()))
            for n, x in moved.items()
        }

    def _gathered(
        self, k: int, group: Mapping[str, Any]
    ) -> tuple[dict[nn.Parameter, dict[str, Any]], dict[str, Any]]:
        """State and gradient of a group's parameters, and the group with its settings."""
        zero, (flat,) = self._zero, group["params"]
        settings, kept = self._parts[id(flat)]
        parameters = cast(
            list[nn.Parameter], getattr(zero, "round_robin_bit16_groups", zero.bit16_groups)[k]
        )
        paddings = getattr(zero, "round_robin_bit16_padding", None)
        behind = paddings[k] if paddings else None
        shapes = {self._names[p]: p.shape for p in parameters}
        found: dict[nn.Parameter, dict[str, Any]] = {p: {} for p in parameters}
        handle = zero.real_dp_process_group[k]
        for key, own in kept.items():
            if getattr(own, "shape", None) != flat.shape:  # one value for all parameters
                for p in parameters:
                    found[p][key] = own
                continue
            here = own.to(parameters[0].device)
            parts = [torch.empty_like(here) for _ in range(dist.get_world_size(handle))]
            dist.all_gather(parts, here, group=handle)
            whole = split_flat(parts, shapes, behind)
            for p in parameters:
                found[p][key] = whole[self._names[p]]
        return found, {**settings, "params": parameters}


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
        if rounding := zero_step.rounding(policy, taken, coming.learning_rate):
            parts["rounding"] = rounding
    if parts and control is not None and control.component is not None:
        parts["control"] = control.component
    moves = read_numbers(
        torch.stack([x.any() for x in part.values()]).any() for part in parts.values()
    )
    moving = {name: part for (name, part), any_ in zip(parts.items(), moves, strict=True) if any_}
    return moving, coming.learning_rate
