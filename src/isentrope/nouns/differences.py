"""Derivatives of a function of one number: by forward mode, and against differences.

    f'(0)  against  [f(h) − f(−h)] / 2h,         f''(0)  against  [f'(h) − f'(−h)] / 2h

The first difference checks f' against plain values: that of the mode, and where f'' is checked too
the f' by single forward mode that the second difference uses. Second differences of values would do
for a smooth f; but they do not show a kink (ReLU, top-k routing) between −h and h until h is so
short that rounding dominates, where differences of slopes are still accurate.

Rounding, kinks and curvature show in [f(h) + f(−h) − 2 f(0)]/h, which bounds the error of a
difference: only larger errors are called wrong.

Forward mode gives (f, f', f'') at 0 in one evaluation.

Operations that torch's forward mode gets wrong, or takes too long over, are replaced.

Layer normalisation, in elementary operations:

    y = (x − mean x) · (var x + ε)^(−1/2) · weight + bias          (variance with 1/n)

Forward mode over forward mode treats the mean and the deviation that `layer_norm` saves as
constants. So its second derivative by x is wrong by tens of per cent, without an error; first
derivatives and backward over backward are correct, and so are `group_norm` and `rms_norm`.
docs/stability.md has a reproduction, tests/nouns/test_forward_mode.py the survey of other
operations.

Products with a frozen matrix:

    y = x Wᵀ + b,        ∂y = ∂x Wᵀ

torch adds x (∂W)ᵀ with ∂W = 0 as a matrix product of its own: a first derivative then takes four
products in place of two, a second one (forward over forward) ten in place of four.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def derivatives_at_zero(function: Callable[[Tensor], Any], order: int) -> tuple[Any, ...]:
    """Value and derivatives of f(e) at e = 0.

    At second order normalisation is written out, because torch's own derivative of it is wrong
    there.

    Args:
        function: Maps a float64 scalar tensor on the CPU, which multiplies tensors of any device,
            to a tensor or a tuple of tensors.
        order: Highest derivative, 1 or 2 (forward over forward).

    Returns:
        (f, f') or (f, f', f''), each shaped like the function's result.

    Raises:
        ValueError: If `order` is not 1 or 2.
    """
    zero = torch.zeros((), dtype=torch.float64)
    return derivatives_along(function, zero, torch.ones_like(zero), order)


def derivatives_along(
    function: Callable[[Any], Any], point: Any, direction: Any, order: int
) -> tuple[Any, ...]:
    """Value and derivatives of f(x + e v) at e = 0.

    x takes v as its tangent as it is: a product of v with a dual e is many times slower.

    Args:
        function: Maps a tensor, or a dictionary of tensors, to a tensor or a tuple of tensors.
        point: x.
        direction: v, like x.
        order: Highest derivative, 1 or 2.

    Returns:
        (f, f') or (f, f', f''), each shaped like the function's result.

    Raises:
        ValueError: If `order` is not 1 or 2.
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {order}.")

    def with_slope(x: Any) -> Any:
        return torch.func.jvp(function, (x,), (direction,))

    if order == 1:
        with FrozenProducts():
            return with_slope(point)
    with NormsWrittenOut(), FrozenProducts():
        result: Any = torch.func.jvp(with_slope, (point,), (direction,))
    (value, first), (_, second) = result
    return value, first, second


Mode = Literal["forward", "backward", "forward over forward", "backward over backward"]
"""How derivatives are computed: the first alone, or the second, which is checked with its first."""

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
        f = _summed(f)
    count = 2 if " over " in mode else 1
    here, forward = _at(f, 0.0, count), mode.startswith("forward")
    claimed = derivatives_at_zero(f, count)[1:] if forward else (*here[1:], _backward(f, count))
    best: list[Gap] = []
    for step in STEPS[dtype]:
        rounding = torch.finfo(dtype).eps / step
        ahead, behind = (_at(f, h, count) for h in (step, -step))
        scale = float(here[0].abs().max())
        gaps: list[Gap] = []
        for at_zero, there, back, derivative in zip(here, ahead, behind, claimed, strict=True):
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


def _at(f: Function, h: float, count: int) -> tuple[Tensor, ...]:
    """f, or (f, f'), at h."""
    if count == 1:
        with torch.no_grad():
            return (f(torch.tensor(h, dtype=torch.float64)),)
    return derivatives_at_zero(lambda e: f(e + h), 1)


def _summed(f: Function) -> Function:
    """The outputs of f, summed with random signs."""

    def total(e: Tensor) -> Tensor:
        out = f(e).flatten()
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, out.shape, generator=generator) * 2 - 1
        return (signs.to(out) * out).sum()

    return total


def _backward(f: Function, order: int) -> Tensor:
    """F' by reverse mode, or f'' by reverse mode over it."""
    e = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (found,) = torch.autograd.grad(f(e), e, create_graph=order > 1)
        if order > 1:
            (found,) = torch.autograd.grad(found, e, materialize_grads=True, allow_unused=True)
    return found


class NormsWrittenOut(TorchFunctionMode):
    """Replace every call of `layer_norm` by its formula.

    It intercepts calls from Python, not those of a scripted or compiled module.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the formula in place of `layer_norm`, else `func`."""
        of_layers = func in (functional.layer_norm, torch.layer_norm)
        return (_layer_norm if of_layers else func)(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """In float32 at least, as torch's kernels compute it."""
    dims = list(range(-len(normalized_shape), 0))
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(input.dtype)


class FrozenProducts(TorchFunctionMode):
    """Replace `linear` where neither its matrix nor its bias is differentiated."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Multiply by a frozen matrix without its tangent, else call `func`."""
        if func is functional.linear and not kwargs and all(map(_is_frozen, args[1:])):
            return _frozen_linear(*args)
        return func(*args, **(kwargs or {}))


def _is_frozen(x: Tensor | None) -> bool:
    """Whether a tensor is the same at every level of the derivatives that are being taken."""
    return x is None or (not x.requires_grad and torch.func.debug_unwrap(x) is x)


class _FrozenLinear(torch.autograd.Function):
    """Its rule is one call and nothing else: outer levels do not see other operations in it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, o) of (…, i) and (o, i)."""
        return functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the matrix."""
        ctx.save_for_forward(inputs[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The same product of the tangent."""
        x = tangents[0]
        return None if x is None else _frozen_linear(x, ctx.saved_tensors[0])


_frozen_linear: Any = _FrozenLinear.apply  # pyright: ignore
