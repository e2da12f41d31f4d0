"""The error of a derivative, measured against differences of plain values.

    f'(0)  against  [f(h) − f(−h)] / 2h,         f''(0)  against  [f'(h) − f'(−h)] / 2h

The first difference checks f' against plain values: that of the mode, and where f'' is checked too
the f' by single forward mode that the second difference uses. Second differences of values would do
for a smooth f; but they do not show a kink (ReLU, top-k routing) between −h and h until h is so
short that rounding dominates, where differences of slopes are still accurate.

Rounding, kinks and curvature show in [f(h) + f(−h) − 2 f(0)]/h, which bounds the error of a
difference: only larger errors are called wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope.nouns.forward_mode import derivatives_at_zero

Mode = Literal["forward", "backward", "forward over forward", "backward over backward"]
"""How derivatives are computed: the first alone, or the second, which is checked with its first."""

Function = Callable[[Tensor], Tensor]

GAP_TOLERANCE = 1e-4
"""Largest error of a derivative, relative to the largest derivative among the outputs."""

DIFFERENCE_STEPS = {
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
        return self.error > GAP_TOLERANCE + 3 * self.bound


def derivative_gap(
    f: Function, *, mode: Mode = "forward over forward", dtype: torch.dtype = torch.float64
) -> Gap:
    """Compare the first, or the first and second, derivative of f at 0 with differences.

    Args:
        f: Maps a float64 scalar tensor to a floating-point tensor.
        mode: How the derivatives are computed. Reverse mode differentiates a sum of the outputs
            with random signs.
        dtype: What f is computed in. Its arguments too may be rounded to it, in opposite ways ahead
            and behind, which no difference reveals: eps/h is added to the bound.

    Returns:
        The worse of the derivatives, at the sharpest step.
    """
    if mode.startswith("backward"):
        f = _sum_with_random_signs(f)
    order = 2 if " over " in mode else 1
    at_zero = _evaluate_below(f, 0.0, order)
    if mode.startswith("forward"):
        claimed = derivatives_at_zero(f, order)[1:]
    else:
        claimed = (*at_zero[1:], _differentiate_backward(f, order))
    best: list[Gap] = []
    for step in DIFFERENCE_STEPS[dtype]:
        rounding = torch.finfo(dtype).eps / step
        ahead = _evaluate_below(f, step, order)
        behind = _evaluate_below(f, -step, order)
        scale = float(at_zero[0].abs().max())
        gaps: list[Gap] = []
        for middle, right, left, derivative in zip(at_zero, ahead, behind, claimed, strict=True):
            difference = (right - left).double() / (2 * step)
            scale = max(float(difference.abs().max()), float(derivative.abs().max()), 1e-3 * scale)
            bound = (right + left - 2 * middle).double().abs().max() / step
            error = (derivative.double() - difference).abs().max()
            gaps.append(
                Gap(float(error) / (scale or 1.0), float(bound) / (scale or 1.0) + rounding)
            )
        best = [min(pair, key=lambda g: g.bound) for pair in zip(best or gaps, gaps, strict=True)]
        if max(gap.bound for gap in best) < GAP_TOLERANCE:
            break
    return max(best, key=lambda g: g.error - 3 * g.bound)


def _evaluate_below(f: Function, h: float, order: int) -> tuple[Tensor, ...]:
    """At h, what the differences of an order are made of: f, or f and f'."""
    if order == 1:
        with torch.no_grad():
            return (f(torch.tensor(h, dtype=torch.float64)),)
    return derivatives_at_zero(lambda e: f(e + h), 1)


def _sum_with_random_signs(f: Function) -> Function:
    """The outputs of f, summed with random signs."""

    def total(e: Tensor) -> Tensor:
        out = f(e).flatten()
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, out.shape, generator=generator) * 2 - 1
        return (signs.to(out) * out).sum()

    return total


def _differentiate_backward(f: Function, order: int) -> Tensor:
    """F' by reverse mode, or f'' by reverse mode over it."""
    e = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(f(e), e, create_graph=order > 1)
        if order == 1:
            return slope
        # of a linear f the slope does not depend on e
        (curvature,) = torch.autograd.grad(slope, e, materialize_grads=True, allow_unused=True)
    return curvature
