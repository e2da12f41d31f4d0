"""Values that no optimizer of torch writes: rates, moments and steps that cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

_SQUARES = ("exp_avg_sq", "square_avg", "max_exp_avg_sq")


def require_plausible(group: Mapping[str, Any], what: str) -> None:
    """Refuse a param group whose settings no optimizer takes.

    Args:
        group: Its settings.
        what: Its name in the message.

    Raises:
        ValueError: Naming the setting.
    """
    if "lr" not in group:
        raise ValueError(f"The {what} has no learning rate (lr).")
    for keys, (fits, words) in _SETTINGS.items():
        for key in keys:
            if key in group and not fits(group[key]):
                raise ValueError(f"{key} of {what} is {group[key]!r}, not {words}.")


def require_moment(key: str, moment: Tensor, what: str) -> None:
    """Refuse a moment that no gradient leaves.

    Args:
        key: "exp_avg", "exp_avg_sq" or another.
        moment: Its tensor.
        what: Its name in the message.

    Raises:
        ValueError: If it holds no numbers, one that is not finite, or a square below 0.
    """
    if moment.layout != torch.strided or moment.is_meta or not moment.is_floating_point():
        kind = "meta" if moment.is_meta else f"{moment.layout} {moment.dtype}"
        raise ValueError(f"The moment {what} is of type {kind}, not plain floating point.")
    if not bool(moment.isfinite().all()):
        raise ValueError(
            f"The moment {what} in the optimizer's state is not finite: training diverged before "
            "it was saved, or the file is damaged."
        )
    if key in _SQUARES and bool((moment < 0).any()):
        raise ValueError(f"The moment {what} is a mean of squares and has negative values.")


def require_steps(steps: Mapping[str, Any]) -> None:
    """Refuse numbers of steps that are no whole numbers above 0.

    Args:
        steps: By parameter name; None for a parameter without.

    Raises:
        ValueError: Naming the parameter.
    """
    for name, step in steps.items():
        if step is not None and not (_number(step) >= 1 and float(step).is_integer()):
            raise ValueError(f"The step of parameter {name!r} is {step!r}, not a whole number.")


def _number(value: Any) -> float:
    """A finite number, or NaN for what is none."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_meta or value.dtype == torch.bool:
            return math.nan
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def _are_betas(value: Any) -> bool:
    pair = isinstance(value, (list, tuple)) and len(cast("list[Any]", value)) == 2
    return pair and all(0 <= _number(x) < 1 for x in cast("list[Any]", value))


_SETTINGS: dict[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("lr", "eps", "weight_decay", "momentum", "dampening", "alpha"): (
        lambda value: _number(value) >= 0,
        "a number of 0 or more",
    ),
    ("amsgrad", "decoupled_weight_decay", "differentiable", "maximize", "nesterov"): (
        lambda value: isinstance(value, bool),
        "true or false",
    ),
    ("betas",): (_are_betas, "two numbers from 0 to below 1"),
}
"""Settings, the values that they can have, and what these are in words."""
