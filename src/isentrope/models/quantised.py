"""Conversion to the type that a model runs in, with derivatives in both modes.

Layers of 4-bit weights then compute by plain products:

    y = x Wᵀ + c,     W = the 4-bit weights, dequantised

bitsandbytes' own kernels have no rule for forward mode, in which their derivative is 0 without an
error. W is made anew for every product, as they do it, so no layer keeps it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.models.architecture import UnsupportedModelError, name_of, use_eager_experts
from isentrope.models.precision import Precision
from isentrope.models.sharding import exchange_as_stored


def convert_model(model: nn.Module, lm: Any, precision: Precision) -> None:
    """Convert a model; exact where the type is a longer one.

    Args:
        model: The model, or a PEFT model around one.
        lm: The causal LM in it.
        precision: It has a runtime type.

    Raises:
        ValueError: If the model is quantised and cannot be converted.
        UnsupportedModelError: If a layer rounds its inputs, naming the first.
    """
    if getattr(lm, "is_quantized", False):
        if precision.runtime_dtype == "float64":
            raise ValueError("A quantised base cannot run in float64: use float32.")
        for parameter in model.parameters():
            if parameter.requires_grad:  # the base keeps its packed weights
                parameter.data = parameter.data.to(precision.runtime)
    else:
        model.to(precision.runtime)
        exchange_as_stored(model)
    use_eager_experts(lm)
    if layers := _find_layers(lm, "Linear8bitLt"):
        raise UnsupportedModelError(
            f"isentrope does not support {name_of(lm)} with {layers[0][0]!r} in 8 bits: "
            "Linear8bitLt of bitsandbytes rounds its inputs too, so scores jump and have no "
            "derivative. Load the base in 4 bits, or without quantization."
        )
    write_out_products(lm)


def write_out_products(lm: nn.Module) -> list[nn.Module]:
    """Let layers of 4-bit weights compute x Wᵀ + c by plain products.

    Args:
        lm: The causal LM; one without such layers is not changed.

    Returns:
        The layers that were changed.
    """
    layers = [x for _, x in _find_layers(lm, "Linear4bit") if "forward" not in vars(x)]
    for layer in layers:
        layer.forward = partial(_multiply, layer)
    return layers


def _find_layers(lm: nn.Module, kind: str) -> list[tuple[str, nn.Module]]:
    """Layers of bitsandbytes by name, where it has been imported at all."""
    library: Any = sys.modules.get("bitsandbytes")
    if library is None:
        return []
    return [(n, x) for n, x in lm.named_modules() if isinstance(x, getattr(library.nn, kind))]


@contextmanager
def plain_products(lm: Any) -> Generator[None]:
    """The same of experts and these layers for a block; training has its own kernels afterwards.

    Args:
        lm: The causal LM.

    Yields:
        Nothing.
    """
    experts = use_eager_experts(lm)
    changed = write_out_products(lm)
    try:
        yield
    finally:
        for module in changed:
            del module.forward
        if experts:
            lm.set_experts_implementation(experts)


def _multiply(layer: Any, x: Tensor) -> Tensor:
    y = _Product.apply(x, layer, False)
    return y if layer.bias is None else y + layer.bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """x Wᵀ, or x W."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, layer: Any, transposed: bool) -> Tensor:
        w = _dequantise(layer).to(x.dtype)
        return x @ (w if transposed else w.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.layer, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Product.apply(g, ctx.layer, not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Product.apply(tangent, ctx.layer, ctx.transposed)


def _dequantise(layer: Any) -> Tensor:
    """(out, in) weights."""
    functional: Any = sys.modules["bitsandbytes"].functional
    packed = layer.weight.data
    state = layer.weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):  # as its own kernel leaves it on some CPUs
        packed, state = functional._convert_weight_packed_for_cpu_inverse(packed, state)
    with torch._C.DisableTorchFunction():  # Precision asks for float64; kernels on a GPU have none
        return functional.dequantize_4bit(packed, state)
