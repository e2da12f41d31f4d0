"""Operations that torch's forward mode gets wrong, or takes too long over.

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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


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
            return _FrozenLinear.apply(*args)
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
        return None if x is None else _FrozenLinear.apply(x, ctx.saved_tensors[0])
