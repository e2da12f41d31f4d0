"""A LoRA layer as one operation while per-sequence gradients are recorded (T7).

    h = s x Aᵀ      y = x Wᵀ + c + h Bᵀ                   forward
    e = s g B       ∂x = g W + e A                        backward, g = ∂y
    G_B = Σ_l g_l h_lᵀ      G_A = Σ_l e_l x_lᵀ            rows, one per sequence

PEFT's own layer computes a product by s, a sum and their derivatives over (tokens × out) in
addition, and stores tensors that no row needs. Only plain layers are handled here: a frozen linear
base, one active adapter that is not merged, without bias or variant, and no autocast, which would
give the products types of their own. The hooks handle all others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from isentrope.attribution.gradients.layers import HandOver, Layer


@dataclass(frozen=True)
class _Plain:
    """A layer, its factors A (r, in) and B (out, r), and s."""

    module: LoraLinear
    a: Layer
    b: Layer
    scaling: float


@contextmanager
def recorded_lora(
    model: nn.Module, layers: list[Layer], hand_over: HandOver
) -> Iterator[tuple[list[Layer], list[Tensor]]]:
    """A block in which plain LoRA layers hand over what gradients are made of.

    Args:
        model: The model; its layers are as before after the block.
        layers: Its layers with trainable parameters.
        hand_over: Called in the backward pass with each factor, its input and its output gradient.

    Yields:
        The layers that are left to hooks, and where autograd may stop for the others.
    """
    plain = _plain_layers(model, {id(layer.module): layer for layer in layers})
    taken = {id(factor) for x in plain for factor in (x.a, x.b)}
    anchors = [torch.zeros((), requires_grad=True)] if plain else []
    try:
        for x in plain:
            x.module.forward = partial(_Lora.apply, x, hand_over, anchors[0])  # pyright: ignore[reportAttributeAccessIssue]
        yield [layer for layer in layers if id(layer) not in taken], anchors
    finally:
        for x in plain:
            vars(x.module).pop("forward", None)


class _Lora(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: _Plain, hand_over: HandOver, anchor: Tensor, x: Tensor) -> Any:
        base: Any = layer.module.base_layer
        a, b = cast(Tensor, layer.a.module.weight), cast(Tensor, layer.b.module.weight)
        y = nn.functional.linear(x, base.weight, base.bias)
        h = (x @ a.mT).mul_(layer.scaling)
        y.flatten(0, -2).addmm_(h.flatten(0, -2), b.mT)
        ctx.save_for_backward(x, h)
        ctx.weights, ctx.layer, ctx.hand_over = (base.weight, a, b), layer, hand_over
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, h), (w, a, b), layer = ctx.saved_tensors, ctx.weights, ctx.layer
        e = (g @ b).mul_(layer.scaling)
        through = None
        if ctx.needs_input_grad[3]:
            through = g @ w
            through.flatten(0, -2).addmm_(e.flatten(0, -2), a)
        ctx.hand_over(layer.b, h, g)
        ctx.hand_over(layer.a, x, e)
        return None, None, None, through


def _plain_layers(model: nn.Module, by_module: dict[int, Layer]) -> list[_Plain]:
    """Those that are one operation here, whose factors are among the layers."""
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return []
    plain: list[_Plain] = []
    for module in model.modules():
        if type(module) is LoraLinear and _is_plain(module):
            (adapter,) = module.active_adapters
            factors = (module.lora_A[adapter], module.lora_B[adapter])
            a, b = (by_module.get(id(factor)) for factor in factors)
            if a is not None and b is not None:
                plain.append(_Plain(module, a, b, module.scaling[adapter]))
    return plain


def _is_plain(module: LoraLinear) -> bool:
    base, active = module.base_layer, module.active_adapters
    if type(base) is not nn.Linear or len(active) != 1 or active[0] not in module.lora_A:
        return False
    if module.merged or module.disable_adapters or active[0] in module.lora_variant:
        return False
    factors = (module.lora_A[active[0]], module.lora_B[active[0]])
    inside = (base, *factors, module.lora_dropout[active[0]])
    return (
        all(type(x) is nn.Linear and x.bias is None for x in factors)
        and {x.weight.dtype for x in factors} == {base.weight.dtype}
        and not any(p.requires_grad for p in base.parameters())
        and not any(x._forward_hooks or x._forward_pre_hooks for x in inside)
        and "forward" not in vars(module)
    )
