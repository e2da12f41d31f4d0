"""Decoder layers that are spread over the processes of torchrun (FSDP2); an adapter is on all.

Each decoder layer is gathered when it is used and dropped afterwards, so a process holds its share
of the layers, one whole layer, the embeddings and the adapter. Scores and both kinds of derivative
are those of the whole model. Every process must run equally many forward passes, which
`models.batching` and `sampling.generate` see to where `Policy.ranks` are all processes. In
training each process has equally many sequences of its own.

Where there is no adapter, trained layers are spread too (`models.layerwise`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from isentrope.models.architecture import UnsupportedModelError, decoder_of, name_of
from isentrope.system.processes import Ranks


def shard_base(model: Any, ranks: Ranks, device: str | torch.device = "cpu") -> None:
    """Spread the decoder layers over processes: those of a frozen base, or of the whole model.

    Args:
        model: The same weights on every process, on the CPU or on its device.
        ranks: All processes of the run.
        device: Where this process computes; weights move there layer by layer.

    Raises:
        ValueError: If there is one process.
        UnsupportedModelError: If the model keeps its layers elsewhere, or quantised.
    """
    if ranks.size == 1:
        raise ValueError(
            "shard_base spreads the base over several processes, and there is one: "
            "start the command by torchrun --nproc_per_node N."
        )
    adapted = hasattr(model, "peft_config")
    lm = model.get_base_model() if adapted else model
    if getattr(lm, "is_quantized", False):
        raise UnsupportedModelError("A quantised base cannot be sharded: choose one of both.")
    mesh = init_device_mesh(torch.device(device).type, (ranks.size,))
    for layer in layers_of(lm):
        whole = {p for p in layer.parameters() if adapted and p.requires_grad}
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
    rest = [p for p in model.parameters() if not isinstance(p, DTensor)]
    for tensor in (*rest, *model.buffers()):
        tensor.data = tensor.data.to(device)
    sharded = [name for name, p in model.named_parameters() if isinstance(p, DTensor)]
    model._ddp_params_and_buffers_to_ignore = sharded  # where DDP averages the gradients


def exchange_as_stored(model: nn.Module) -> None:
    """Let layers be gathered in the type that their parts now have.

    FSDP2 otherwise keeps the type of the first forward pass.

    Args:
        model: Whose parameters were converted, or replaced; any model.
    """
    for layer in model.modules():
        if not isinstance(layer, FSDPModule):
            continue
        for group in layer._get_fsdp_state()._fsdp_param_groups:
            for parameter in group.fsdp_params:
                parameter.reset_sharded_param()
                parameter.all_gather_outputs = []
                vars(parameter).pop("_unsharded_param", None)
            group._init_mp_dtypes()


def put_back(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """Give a parameter, sharded or not, other content of any type.

    Args:
        parameter: It stays the same object.
        data: What it holds afterwards, sharded alike; not copied.
    """
    if isinstance(parameter, DTensor):  # its part is not a part of `data`
        torch.utils.swap_tensors(parameter, nn.Parameter(data, parameter.requires_grad))
    else:
        parameter.data = data


def is_spread(model: nn.Module) -> bool:
    """Whether a parameter of a model is spread over processes."""
    return any(isinstance(p, DTensor) for p in model.parameters())


def layers_of(lm: Any) -> nn.ModuleList:
    """The decoder layers of a causal LM.

    Args:
        lm: The causal LM, below any adapter wrapper.

    Returns:
        Its layers.

    Raises:
        UnsupportedModelError: If it keeps them elsewhere.
    """
    found = getattr(decoder_of(lm), "layers", None)
    if not isinstance(found, nn.ModuleList):
        raise UnsupportedModelError(
            f"{name_of(lm)} keeps its layers elsewhere than in `layers`, so its base cannot be "
            "sharded: leave shard_base false."
        )
    return found
