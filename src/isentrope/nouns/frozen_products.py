"""Products with a frozen matrix in forward mode, where torch also multiplies zeros.

    y = x Wᵀ + b,        ∂y = ∂x Wᵀ

torch adds x (∂W)ᵀ with ∂W = 0 as a matrix product of its own: a first derivative then takes four
products in place of two, a second one (forward over forward) ten in place of four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class FrozenProducts(TorchFunctionMode):
    """Replace `linear` where neither its matrix nor its bias is differentiated."""

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: Any = None
    ) -> Any:
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
    def jvp(ctx: Any, x: Tensor | None, *_: Any) -> Any:
        """The same product of the tangent."""
        return None if x is None else _FrozenLinear.apply(x, ctx.saved_tensors[0])
