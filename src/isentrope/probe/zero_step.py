"""A step of DeepSpeed's ZeRO stages 1 and 2, for the probe: whole, and from the θ it was taken at.

DeepSpeed holds gradient and moments of a param group as one flat vector, of which each process has
a part, and takes the step inside of the backward pass. So θ is kept when the step begins, and each
part as DeepSpeed's optimizer is about to use it, clipped and unscaled. Afterwards the parts are
gathered, and θ is put back for as long as the step is read.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.processes import gather, together
from isentrope.trainers.convert.gathered import split_flat


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
        self.gradients = {p: of_p["grad"] for p, of_p in state.items()}
        plain = {p: {k: x for k, x in of_p.items() if k != "grad"} for p, of_p in state.items()}
        remembered: dict[Tensor, Any] = {p: of_p for p, of_p in plain.items() if of_p}
        self.state = defaultdict(dict, remembered)


@dataclass(frozen=True)
class _Part:
    """What this process's optimizer uses of a param group: settings, gradient and state."""

    settings: dict[str, Any]
    vectors: dict[str, Tensor]
    plain: dict[str, Any]


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
        self._parts: dict[int, _Part] = {}
        self._hook = self._zero.optimizer.register_step_pre_hook(self._keep)

    def _keep(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            (flat,) = group["params"]
            if flat.grad is None:
                continue
            used = {"grad": flat.grad, **optimizer.state.get(flat, {})}
            kept = {k: x.detach().clone() if isinstance(x, Tensor) else x for k, x in used.items()}
            vectors = {k for k, x in kept.items() if getattr(x, "shape", None) == flat.shape}
            self._parts[id(flat)] = _Part(
                {k: x for k, x in group.items() if k != "params"},
                {k: x for k, x in kept.items() if k in vectors},
                {k: x for k, x in kept.items() if k not in vectors},
            )

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
        part = self._parts[id(flat)]
        parameters = cast(
            list[nn.Parameter], getattr(zero, "round_robin_bit16_groups", zero.bit16_groups)[k]
        )
        paddings = getattr(zero, "round_robin_bit16_padding", None)
        behind = paddings[k] if paddings else None
        shapes = {self._names[p]: p.shape for p in parameters}
        found: dict[nn.Parameter, dict[str, Any]] = {p: dict(part.plain) for p in parameters}
        handle = zero.real_dp_process_group[k]
        for key, own in part.vectors.items():
            here = own.to(parameters[0].device)
            parts = [torch.empty_like(here) for _ in range(dist.get_world_size(handle))]
            dist.all_gather(parts, here, group=handle)
            whole = split_flat(parts, shapes, behind)
            for p in parameters:
                found[p][key] = whole[self._names[p]]
        return found, {**part.settings, "params": parameters}
