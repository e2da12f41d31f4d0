"""Forward mode along a direction, to second order, and the operations that it is given itself.

(f, f', f'') at 0 come from one evaluation, by dual numbers over dual numbers. Two operations that
torch's forward mode gets wrong, or takes too long over, are replaced.

Layer normalisation, in elementary operations:

    y = (x − mean x) · (var x + ε)^(−1/2) · weight + bias          (variance with 1/n)

Forward mode over forward mode treats the mean and the deviation that `layer_norm` saves as
constants. So its second derivative by x is wrong by tens of per cent, without an error; first
derivatives and backward over backward are correct, and so are `group_norm` and `rms_norm`.
docs/stability.md has a reproduction, tests/nouns/test_forward_mode.py the survey of other
operations.

Operations with one operand that moves, of which no other is differentiated:

    y = x Wᵀ + b,  ∂y = ∂x Wᵀ            y = x c,  ∂y = ∂x c            y = x + c,  ∂y = ∂x

torch adds x (∂W)ᵀ with ∂W = 0 as a matrix product of its own: a first derivative then takes four
products in place of two, a second one (forward over forward) ten in place of four. Of products with
c and sums it makes no operation more, but finds the shape of ∂c = 0 in Python, which takes a
hundred times as long as a small operation: a device waits for it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from isentrope.system.log import quiet_libraries


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
    function: Callable[[Any], Any], point: Any, direction: Any, order: int, curvature: Any = None
) -> tuple[Any, ...]:
    """Value and derivatives of f(x + e v + ½ e² a) at e = 0.

    x takes v as its tangent as it is: a product of v with a dual e is many times slower.

    Args:
        function: Maps a tensor, or several as a dictionary or a tuple, to a tensor or a tuple.
        point: x.
        direction: v, like x.
        order: Highest derivative, 1 or 2.
        curvature: a, like x, which the second derivative reads; None for a straight line.

    Returns:
        (f, f') or (f, f', f''), each shaped like the function's result.

    Raises:
        ValueError: If `order` is not 1 or 2.
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {order}.")

    load_derivatives()

    def with_slope(x: Any, v: Any = direction) -> Any:
        return torch.func.jvp(function, (x,), (v,))

    if order == 1:
        with FrozenOperands():
            return with_slope(point)
    moving = ((point,), (direction,))
    if curvature is not None:
        moving = ((point, direction), (direction, curvature))
    with NormsWrittenOut(), _NestedFrozenOperands():
        result: Any = torch.func.jvp(with_slope, *moving)
    (value, first), (_, second) = result  # of (f, f') its derivatives (f', f'')
    return value, first, second


@cache
def load_derivatives() -> None:
    """Let torch compile its own derivatives, which it does at the first use, with a warning."""
    zero = torch.zeros(())
    with quiet_libraries():
        torch.func.jvp(torch.neg, (zero,), (zero,))


class NormsWrittenOut(TorchFunctionMode):
    """Replace every call of `layer_norm` by its formula.

    It intercepts calls from Python, not those of a scripted or compiled module.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the formula in place of `layer_norm`, else `func`."""
        if func in (functional.layer_norm, torch.layer_norm):
            func = _normalise_layer
        return func(*args, **(kwargs or {}))


def _normalise_layer(
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


class FrozenOperands(TorchFunctionMode):
    """Give `linear`, products and sums with one operand that moves its tangent alone."""

    linear: Callable[..., Tensor] = staticmethod(functional.linear)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one of these on the value and on the tangent, else `func`."""
        if kwargs or func not in _LINEAR or not all(map(_is_frozen, args[2:])):
            return func(*args, **(kwargs or {}))
        left, right = [
            _unpack(x) if isinstance(x, Tensor) else forward_ad.UnpackedDualTensor(x, None)
            for x in args[:2]
        ]
        moving: list[Any] = [operand for operand in (left, right) if operand.tangent is not None]
        if len(moving) != 1 or (func in _LINEAR_IN_THE_LEFT and left is not moving[0]):
            return func(*args)
        compute = func
        if func is functional.linear:
            if not _is_frozen(args[1]):
                return func(*args)
            compute = self.linear
        value = compute(left.primal, right.primal, *args[2:])
        if func in _SUMS:
            # a copy: what is done in place to the sum must not reach the tangent of its term
            tangent = moving[0].tangent.to(value.dtype).expand_as(value).clone()
        elif left is moving[0]:
            tangent = compute(left.tangent, right.primal)
        else:
            tangent = compute(left.primal, right.tangent)
        return _make_dual(value, tangent)


_SUMS = {torch.Tensor.add, torch.add, torch.Tensor.sub, torch.sub}
_LINEAR_IN_THE_LEFT = {functional.linear, torch.Tensor.div, torch.div, torch.Tensor.sub, torch.sub}
_LINEAR = {torch.Tensor.mul, torch.mul, *_SUMS, *_LINEAR_IN_THE_LEFT}
_make_dual: Any = forward_ad.make_dual  # pyright: ignore
_unpack: Any = forward_ad.unpack_dual  # pyright: ignore


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


class _NestedFrozenOperands(FrozenOperands):
    """The same where value and tangent move themselves, by an outer derivative."""

    linear = staticmethod(_frozen_linear)
