"""Training ends at the first number that is not finite, before a checkpoint can hold it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from isentrope.processes import gather


class TrainingDivergedError(RuntimeError):
    """A loss, gradient norm, parameter or optimizer moment is NaN or infinite."""


def require_finite_numbers(step: int, numbers: Mapping[str, float], last_good: Path | None) -> None:
    """End training at a number that is not finite; every process must hold the same numbers.

    Args:
        step: The step.
        numbers: By name, as the message gives them.
        last_good: The newest checkpoint, or None.

    Raises:
        TrainingDivergedError: Naming the step, the number and the newest checkpoint.
    """
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise TrainingDivergedError(_sentence(step, f"{name} is {number}", last_good))


def require_finite_state(
    step: int, model: nn.Module, optimizer: Any, last_good: Path | None = None
) -> None:
    """End training at a parameter or moment that is not finite; every process must call this.

    Args:
        step: The step.
        model: The model; what is not trained is not looked at.
        optimizer: Its optimizer, or None.
        last_good: The newest checkpoint, or None.

    Raises:
        TrainingDivergedError: Naming the step, the parameter and the newest checkpoint.
    """
    bad = next((name for name in gather(_first_bad(model, optimizer)) if name), None)
    if bad is not None:
        raise TrainingDivergedError(_sentence(step, f"{bad} holds NaN or infinity", last_good))


def _first_bad(model: nn.Module, optimizer: Any) -> str | None:
    named = dict(_tensors(model, optimizer))
    with torch.no_grad():
        flags = [x.isfinite().all() for x in named.values()]
        by_device: dict[torch.device, list[Tensor]] = {}
        for flag in flags:  # one transfer per device, not one per tensor
            by_device.setdefault(flag.device, []).append(flag)
        if all(bool(torch.stack(found).all()) for found in by_device.values()):
            return None
    return next(name for name, flag in zip(named, flags, strict=True) if not bool(flag))


def _tensors(model: nn.Module, optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    states = getattr(optimizer, "state", {})
    for name, parameter in trained.items():
        yield f"Parameter {name!r}", _local(parameter)
        for key, value in (states.get(parameter) or {}).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                yield f"The optimizer's {key!r} of parameter {name!r}", _local(value)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _sentence(step: int, what: str, last_good: Path | None) -> str:
    good = f"the last good checkpoint is {last_good}" if last_good else "no checkpoint was saved"
    return (
        f"Training ends at step {step}, which is not saved: {what[0].lower()}{what[1:]}; {good}. "
        "Resuming would do the same again: start a new run with a lower learning rate, or with "
        "the setting corrected that is not a number."
    )
