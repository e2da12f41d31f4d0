"""Converts a model in place to the type that it runs in."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

from torch import nn

from isentrope.models.architecture import use_eager_experts
from isentrope.models.precision import Precision
from isentrope.models.quantised import require_exact_inputs, write_out_products
from isentrope.models.sharding import exchange_as_stored


def convert(model: nn.Module, lm: Any, precision: Precision) -> None:
    """Convert a model; exact where the type is a longer one.

    Args:
        model: The model, or a PEFT model around one.
        lm: The causal LM in it.
        precision: It has a runtime type.

    Raises:
        ValueError: If the model is quantised and cannot be converted.
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
    require_exact_inputs(lm)
    write_out_products(lm)
