"""A step under ZeRO stages 1 and 2, whose optimizer is partitioned over the processes.

DeepSpeed holds gradient and moments of a param group as one flat vector, of which each process has
a part, and takes the step inside of the backward pass. So θ is kept when the step begins, and each
part as DeepSpeed's optimizer is about to use it, clipped and unscaled. Afterwards the parts are
gathered, and θ is put back for as long as the step is read.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from isentrope.checkpoint.convert.gathered import is_vector, of_parameters, split_flat
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.processes import gather, together


def zero_optimizer(optimizer: Any) -> Any:
    """DeepSpeed's optimizer of stage 1 or 2, given itself or in accelerate's wrapper; else None."""
    candidates = optimizer, getattr(optimizer, "optimizer", None)
    return next((x for x in candidates if hasattr(x, "single_partition_of_fp32_groups")), None)


class PartitionedStep:
    """One step: its θ, and what the optimizer used, by name of the parameter once it was gathered.

    Attributes:
        optimizer: A state_dict of before the step.
        gradient: What the step used, float32.
    """

    optimizer: dict[str, Any]
    gradient: Vector

    def __init__(self, model: nn.Module, zero: Any) -> None:
        """Begin to keep what the next step uses.

        Args:
            model: The model without DeepSpeed's wrapper.
            zero: DeepSpeed's optimizer, by `zero_optimizer`.
        """
        self._zero = zero
        self._names = {p: name for name, p in model.named_parameters()}
        self._theta = {p: p.detach().clone() for p in self._names if p.requires_grad}
        self._parts: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._failure: Exception | None = None
        self._hook = zero.optimizer.register_step_pre_hook(self._watch)

    def stop(self) -> None:
        """Keep nothing of later steps."""
        self._hook.remove()

    def _watch(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keep what a step uses; an error inside DeepSpeed's step waits until it is over."""
        try:
            self._keep_parts(optimizer)
        except Exception as error:  # raised by the probe later, whatever it is
            self._failure = error

    def _keep_parts(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            (flat,) = group["params"]
            if flat.grad is None:
                continue
            state = {"grad": flat.grad, **optimizer.state.get(flat, {})}
            settings = {k: x for k, x in group.items() if k != "params"}
            self._parts[id(flat)] = copy.deepcopy((settings, state))

    @contextmanager
    def at_start(self) -> Iterator["PartitionedStep | None"]:
        """A block in which the model is at θ again. All processes must enter it.

        Yields:
            Itself, gathered; None if DeepSpeed skipped the step (overflow).

        Raises:
            Exception: What failed while the step was kept.
        """
        self.stop()
        if self._failure is not None:
            raise self._failure
        groups = self._zero.optimizer.param_groups
        if any(gather(any(id(group["params"][0]) not in self._parts for group in groups))):
            yield None
            return
        self._after = together(lambda: {p: p.detach().clone() for p in self._theta})
        self._gather_parts()
        try:
            for p, theta in self._theta.items():
                p.data.copy_(theta)
            yield self
        finally:
            for p, after in self._after.items():
                p.data.copy_(after)

    def rounding(self, policy: Policy, v: Vector, eta: float) -> Vector:
        """What rounding to the weights' type adds to the step, per unit learning rate.

        Args:
            policy: The live policy, at θ.
            v: The step that was taken.
            eta: η.

        Returns:
            (θ' − θ)/η − v by parameter; empty where all weights are float32 or longer, or η is 0.
        """
        parameters = {name: policy.model.get_parameter(name) for name in policy.names}
        if eta == 0 or all(p.dtype in (torch.float32, torch.float64) for p in parameters.values()):
            return {}
        return {
            name: (self._after[p].double() - p.detach().double()) / eta - v[name]
            for name, p in parameters.items()
        }

    def _gather_parts(self) -> None:
        """Gather the flat vectors of all processes, and cut them into parameters."""
        zero = self._zero
        states: dict[str, dict[str, Any]] = {}
        groups: list[dict[str, Any]] = []
        paddings = getattr(zero, "round_robin_bit16_padding", None)
        order = getattr(zero, "round_robin_bit16_groups", zero.bit16_groups)
        for k, group in enumerate(zero.optimizer.param_groups):
            settings, state = self._parts[id(group["params"][0])]
            shapes = {self._names[p]: p.shape for p in order[k]}
            handle = zero.real_dp_process_group[k]
            of_processes: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size(handle))]
            for key, value in state.items():
                values = [value] * len(of_processes)  # one value for all parameters, or a vector
                if is_vector(value):
                    share = value.to(order[k][0].device)
                    values = [torch.empty_like(share) for _ in of_processes]
                    dist.all_gather(values, share, group=handle)
                for of_process, gathered in zip(of_processes, values, strict=True):
                    of_process[key] = gathered
            split = partial(split_flat, behind=paddings[k] if paddings else None)
            states |= of_parameters(of_processes, shapes, split)
            groups.append({**settings, "params": list(shapes)})
        self.gradient = {name: state.pop("grad") for name, state in states.items()}
        with_moments = {name: state for name, state in states.items() if state}
        self.optimizer = {"state": with_moments, "param_groups": groups}
