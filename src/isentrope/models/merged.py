"""LoRA added to the weights of its layers, W + s B A, for as long as responses are drawn.

A decoding step reads few tokens, so a layer of LoRA takes as long as its number of products: three
in place of one. The sum is exact to rounding in the type of W, so it is made where that is float32
or float64, and the tensors of before are put back themselves: no weight is rounded.
"""

import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from isentrope.parallel.sharded import is_sharded
from isentrope.system.memory import free_memory, is_lack_of_memory

_log = logging.getLogger("isentrope")

EXACT_TYPES = (torch.float32, torch.float64)
"""Types of weights in which the sum rounds no more than the products do."""

PART_OF_FREE = 0.25
"""Part of the free memory that the sums may take: they are a second copy of the layers."""


@contextmanager
def adapters_merged(model: Any) -> Generator[None]:
    """A block in which layers with LoRA compute x (W + s B A)ᵀ by one product.

    Layers in which the sum would round, or would not be the layer's own function, are left as they
    are: weights of 16 bits or quantised, DoRA and other variants, a bias of LoRA, spread weights.
    All are left where memory is short. The tensors are the same ones afterwards, whatever happens.

    Args:
        model: Any model in evaluation mode.

    Yields:
        Nothing.

    Raises:
        RuntimeError: What torch raises but for lack of memory.
        MemoryError: Never: nothing is merged then.
    """
    layers = mergeable_layers(model)
    needed = sum(layer.base_layer.weight.nbytes for layer in layers)
    if layers and needed > PART_OF_FREE * free_memory(layers[0].base_layer.weight.device):
        _log.debug("LoRA is not merged for drawing: that would take %d bytes.", needed)
        layers = []
    with ExitStack() as restored:
        try:
            for layer in layers:
                base = layer.base_layer
                total = base.weight.detach().clone()
                for name in layer.active_adapters:
                    if name in layer.lora_A:
                        total += layer.get_delta_weight(name).detach()
                restored.callback(setattr, base, "weight", base.weight)
                restored.callback(layer.merged_adapters.clear)
                base.weight = nn.Parameter(total, requires_grad=False)
                layer.merged_adapters.extend(layer.active_adapters)
        except (RuntimeError, MemoryError) as error:
            if not is_lack_of_memory(error):
                raise
            restored.close()
        yield


def mergeable_layers(model: Any) -> list[Any]:
    """The layers with LoRA of a model that `adapters_merged` merges where there is memory.

    Args:
        model: Any model.

    Returns:
        Layers of PEFT; why others are none is in the log at level debug.
    """
    layers: list[Any] = []
    if not hasattr(model, "peft_config"):
        return layers
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            if reason := merge_refusal(module):
                _log.debug("LoRA of %s is not merged for drawing: %s.", name, reason)
            else:
                layers.append(module)
    return layers


def merged_bytes(model: Any) -> int:
    """Bytes that the weights of these layers take while they are merged."""
    return sum(layer.base_layer.weight.nbytes for layer in mergeable_layers(model))


def merge_refusal(layer: Any) -> str | None:
    """Why a layer's LoRA cannot be merged for a while without changing what it computes.

    Args:
        layer: A layer of PEFT's LoRA.

    Returns:
        The reason; None where it can be merged.
    """
    from peft.tuners.lora import Linear
    from transformers.pytorch_utils import Conv1D

    base: Any = layer.base_layer
    if type(layer) is not Linear or type(base) not in (nn.Linear, Conv1D):
        return f"{type(layer).__name__} over {type(base).__name__} is no plain linear layer"
    if layer.merged or layer.disable_adapters:
        return "the adapter is merged or disabled"
    weights = [base.weight]
    for name in layer.active_adapters:
        if name in layer.lora_A:
            weights += [layer.lora_A[name].weight, layer.lora_B[name].weight]
            if name in layer.lora_variant or layer.lora_bias[name]:
                return "a variant of LoRA or its bias is no sum of weights"
    types: set[torch.dtype] = set()
    for weight in weights:
        types.add(weight.dtype)
        if is_sharded(weight):
            return "the weights are spread over processes"
    if len(types) > 1 or not types <= {*EXACT_TYPES}:
        return f"the sum would round in {' and '.join(sorted(map(str, types)))}"
    return None
