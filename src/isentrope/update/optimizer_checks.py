"""Values that no optimizer of torch writes: rates, moments and steps that cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.nouns.vectors import first_false, read_numbers

_SQUARES = ("'exp_avg_sq'", "'square_avg'", "'max_exp_avg_sq'")


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


def require_moments(states: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse moments that no gradient leaves, by their values.

    Args:
        states: By parameter name, moments by key; what is no tensor is passed over.

    Raises:
        ValueError: If one holds no numbers, one that is not finite, or a square below 0.
    """
    moments = {
        f"{key!r} of parameter {name!r}": x
        for name, state in states.items()
        for key, x in state.items()
        if key != "step" and isinstance(x, Tensor)
    }
    for what, moment in moments.items():
        if moment.layout != torch.strided or moment.is_meta or not moment.is_floating_point():
            kind = "meta" if moment.is_meta else f"{moment.layout} {moment.dtype}"
            raise ValueError(f"The moment {what} is of type {kind}, not plain floating point.")
    least = {n: 0.0 if n.startswith(_SQUARES) else -math.inf for n in moments}
    sound = {n: (x.isfinite() & (x >= least[n])).all() for n, x in moments.items()}
    if what := first_false(sound):
        raise ValueError(
            f"The moment {what} in the optimizer's state is not finite, or negative where it is a "
            "mean of squares: training diverged before it was saved, or the file is damaged."
        )


def require_steps(states: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse numbers of steps that are no whole numbers above 0.

    Args:
        states: By parameter name; None for a parameter without.

    Returns:
        The same; a device that holds steps is asked for all of them at once.

    Raises:
        ValueError: Naming the parameter.
    """
    steps = {n: s["step"] for n, s in states.items() if s and s.get("step") is not None}
    there = {n: x for n, x in steps.items() if isinstance(x, Tensor) and x.is_cuda}
    steps |= zip(there, read_numbers(x.sum() for x in there.values()), strict=True)
    for name, step in steps.items():
        if not (_number(step) >= 1 and float(step).is_integer()):
            raise ValueError(f"The step of parameter {name!r} is {step!r}, not a whole number.")
    return {**states, **{n: {**states[n], "step": step} for n, step in steps.items()}}


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
