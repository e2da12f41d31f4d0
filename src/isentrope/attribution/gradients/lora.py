"""A LoRA layer as one operation while per-sequence gradients are recorded (T7).

    h = s x Aᵀ      y = x Wᵀ + c + h Bᵀ                   forward
    e = s g B       ∂x = g W + e A                        backward, g = ∂y
    G_B = Σ_l g_l h_lᵀ      G_A = Σ_l e_l x_lᵀ            rows, one per sequence

PEFT's own layer computes a product by s, a sum and their derivatives over (tokens × out) in
addition, and stores tensors that no row needs. Only plain layers are handled here: a frozen linear
base, one active adapter that is not merged, without bias, dropout or variant. The hooks handle all
others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from isentrope.attribution.gradients.layers import Layer

HandOver = Callable[[Layer, Tensor, Tensor], None]


@dataclass(frozen=True)
class LoraLayer:
    """A linear layer with an adapter.

    Attributes:
        module: PEFT's layer.
        a: Its factor A, (r, in).
        b: Its factor B, (out, r).
        scaling: s.
    """

    module: LoraLinear
    a: Layer
    b: Layer
    scaling: float

    @property
    def weights(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """W, c, A and B."""
        base: Any = self.module.base_layer
        a, b = self.a.module.weight, self.b.module.weight
        return base.weight, base.bias, cast(Tensor, a), cast(Tensor, b)

    def record(self, anchor: Tensor, hand_over: HandOver) -> None:
        """Replace the layer's forward pass.

        Args:
            anchor: A tensor that requires a gradient: autograd computes its gradient.
            hand_over: Called in the backward pass with each factor, its input and its output
                gradient.
        """

        def hand_over_factors(h: Tensor, x: Tensor, e: Tensor, g: Tensor) -> None:
            hand_over(self.b, h, g)
            hand_over(self.a, x, e)

        self.module.forward = lambda x: _Lora.apply(x, anchor, self, hand_over_factors)

    def restore(self) -> None:
        """Restore the layer's own forward pass."""
        del self.module.forward


class _Lora(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, layer: LoraLayer, hand_over: Callable
    ) -> Tensor:
        w, c, a, b = layer.weights
        y = nn.functional.linear(x, w, c)
        h = (x @ a.mT).mul_(layer.scaling)
        y.flatten(0, -2).addmm_(h.flatten(0, -2), b.mT)
        ctx.save_for_backward(x, h)
        ctx.factors, ctx.scaling, ctx.hand_over = (w, a, b), layer.scaling, hand_over
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, h), (w, a, b) = ctx.saved_tensors, ctx.factors
        e = (g @ b).mul_(ctx.scaling)
        through = None
        if ctx.needs_input_grad[0]:
            through = g @ w
            through.flatten(0, -2).addmm_(e.flatten(0, -2), a)
        ctx.hand_over(h, x, e, g)
        return through, None, None, None


def find_lora(model: nn.Module, layers: Iterable[Layer]) -> list[LoraLayer]:
    """The plain LoRA layers among those with trainable parameters.

    Args:
        model: The model.
        layers: Its layers with trainable parameters.

    Returns:
        Those of them that can be taken as one operation; none under autocast, which would give
        the products types of their own.
    """
    by_module = {id(layer.module): layer for layer in layers}
    lora: list[LoraLayer] = []
    for module in _plain_layers(model):
        (adapter,) = module.active_adapters
        a, b = (by_module.get(id(factors[adapter])) for factors in (module.lora_A, module.lora_B))
        if a is not None and b is not None:
            lora.append(LoraLayer(module, a, b, module.scaling[adapter]))
    return lora


@contextmanager
def scaled_by_rank(model: nn.Module) -> Generator[None]:
    """A block in which plain LoRA layers scale x Aᵀ, (tokens × r), and not the update of y.

    Forward mode along m directions scales m + 1 arrays.

    Args:
        model: The model; its layers are as before after the block.

    Yields:
        Nothing.
    """
    plain = _plain_layers(model)
    try:
        for module in plain:
            module.forward = _scaling_first(module)  # pyright: ignore[reportAttributeAccessIssue]
        yield
    finally:
        for module in plain:
            vars(module).pop("forward", None)


def _scaling_first(module: LoraLinear) -> Callable[..., Tensor]:
    (adapter,) = module.active_adapters
    base, scaling = module.base_layer, module.scaling[adapter]
    a, b = module.lora_A[adapter], module.lora_B[adapter]
    return lambda x: base(x) + b(a(x) * scaling)


def _plain_layers(model: nn.Module) -> list[LoraLinear]:
    """The layers that are handled here; none under autocast."""
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return []
    return [x for x in model.modules() if type(x) is LoraLinear and _is_plain(x)]


def _is_plain(module: LoraLinear) -> bool:
    base, active = module.base_layer, module.active_adapters
    if type(base) is not nn.Linear or len(active) != 1 or active[0] not in module.lora_A:
        return False
    if module.merged or module.disable_adapters or active[0] in module.lora_variant:
        return False
    a, b = module.lora_A[active[0]], module.lora_B[active[0]]
    factors = (a, b)
    plain = all(type(x) is nn.Linear and x.bias is None for x in factors)
    inside = (base, *factors, module.lora_dropout[active[0]])
    hooked = any(x._forward_hooks or x._forward_pre_hooks for x in inside)
    same = {x.weight.dtype for x in (base, *factors)} == {base.weight.dtype}
    frozen = not any(p.requires_grad for p in base.parameters())
    return plain and same and frozen and not hooked and "forward" not in vars(module)
