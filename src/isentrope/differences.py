"""Derivatives of a function of one number, as autograd gives them, against differences.

    f'(0)  against  [f(h) − f(−h)] / 2h,         f''(0)  against  [f'(h) − f'(−h)] / 2h

The first difference checks f' by single forward mode against plain values. The second uses that f';
f'' is by forward over forward or by backward over backward. Second differences of values would do
for a smooth f; but they do not show a kink (ReLU, top-k routing) between −h and h until h is so
short that rounding dominates, where differences of slopes are still accurate.

Rounding, kinks and curvature show in [f(h) + f(−h) − 2 f(0)]/h, which bounds the error of a
difference: only larger errors are called wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope.forward_mode import derivatives_at_zero

Mode = Literal["forward over forward", "backward over backward"]
Function = Callable[[Tensor], Tensor]

TOLERANCE = 1e-4
"""Largest error of a derivative, relative to the largest derivative among the outputs."""

STEPS = {
    torch.float64: (1e-6, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2),
    torch.float32: (3e-4, 1e-4, 1e-3, 1e-2),
}
"""h by the type f is computed in, tried in this order until one is accurate enough."""


@dataclass(frozen=True)
class Gap:
    """The distance of a derivative from a difference, both relative.

    Attributes:
        error: Largest |derivative − difference| of the outputs.
        bound: Error of the difference by rounding, kinks and curvature, at most.
    """

    error: float
    bound: float

    @property
    def wrong(self) -> bool:
        """Whether the error exceeds the bound; False where a number is not finite."""
        return self.error > TOLERANCE + 3 * self.bound


def derivative_gap(
    f: Function,
    *,
    mode: Mode = "forward over forward",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Gap:
    """Compare the first and second derivative of f at 0 with differences.

    Args:
        f: Maps a float64 scalar tensor to a floating-point tensor.
        mode: How the second derivative is computed. Backward over backward differentiates a sum of
            the outputs with random signs.
        dtype: What f is computed in. Its arguments too may be rounded to it, in opposite ways ahead
            and behind, which no difference reveals: eps/h is added to the bound.
        device: Where the scalar lives.

    Returns:
        The worse of the two derivatives, at the sharpest step.
    """
    if mode == "backward over backward":
        f = _summed(f)
        second = _backward_twice(f, device)
        value, first = derivatives_at_zero(f, 1, device)
        claimed = first
    else:
        _, claimed, second = derivatives_at_zero(f, 2, device)
        value, first = derivatives_at_zero(f, 1, device)
    best: list[Gap] = []
    for step in STEPS[dtype]:
        rounding = torch.finfo(dtype).eps / step
        ahead, behind = (_at(f, h, device) for h in (step, -step))
        scale = float(value.abs().max())
        gaps: list[Gap] = []
        for at_zero, there, back, derivative in zip(
            (value, first), ahead, behind, (claimed, second), strict=True
        ):
            difference = (there - back).double() / (2 * step)
            scale = max(float(difference.abs().max()), float(derivative.abs().max()), 1e-3 * scale)
            bound = (there + back - 2 * at_zero).double().abs().max() / step
            error = (derivative.double() - difference).abs().max()
            gaps.append(
                Gap(float(error) / (scale or 1.0), float(bound) / (scale or 1.0) + rounding)
            )
        best = [min(pair, key=lambda g: g.bound) for pair in zip(best or gaps, gaps, strict=True)]
        if max(gap.bound for gap in best) < TOLERANCE:
            break
    return max(best, key=lambda g: g.error - 3 * g.bound)


def _at(f: Function, h: float, device: torch.device | str) -> tuple[Tensor, Tensor]:
    value, slope = derivatives_at_zero(lambda e: f(e + h), 1, device)
    return value, slope


def _summed(f: Function) -> Function:
    """The outputs of f, summed with random signs."""

    def total(e: Tensor) -> Tensor:
        out = f(e).flatten()
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, out.shape, generator=generator) * 2 - 1
        return (signs.to(out) * out).sum()

    return total


def _backward_twice(f: Function, device: torch.device | str) -> Tensor:
    e = torch.zeros((), dtype=torch.float64, device=device, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(f(e), e, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, e, materialize_grads=True, allow_unused=True)
    return curvature
