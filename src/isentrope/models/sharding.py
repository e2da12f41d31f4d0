"""Decoder layers that are spread over the processes of torchrun (FSDP2); an adapter is on all.

Each decoder layer is gathered when it is used and dropped afterwards, so a process holds its share
of the layers, one whole layer, the embeddings and the adapter. Scores and both kinds of derivative
are those of the whole model. Every process must run equally many forward passes, which
`models.batching` and `sampling.generate` see to where all processes share the work. In
training each process has equally many sequences of its own.

Where there is no adapter, trained layers are spread too, and so is θ. torch has no forward mode
through sharded weights. So a layer's parameters are replaced when they have been gathered for its
forward pass: by θ + ηv, of which v is gathered with them. η may be a dual number, and derivatives
along v are then those of the whole model, exactly. A gradient of θ is added up over the processes
parameter by parameter, as backward passes find it, in float64; each process keeps its part.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from isentrope.models.architecture import UnsupportedModelError, decoder_of, name_of
from isentrope.nouns.vectors import Vector
from isentrope.parallel.sharded import is_sharded, summed_in_parts, whole
from isentrope.system.one_line import one_line
from isentrope.system.processes import one_process, world_size


def shard_base(model: Any, device: str | torch.device = "cpu") -> None:
    """Spread the decoder layers over processes: those of a frozen base, or of the whole model.

    Args:
        model: The same weights on every process, on the CPU or on its device.
        device: Where this process computes; weights move there layer by layer.

    Raises:
        ValueError: If there is one process, or NCCL would have to carry tensors of the CPU.
        UnsupportedModelError: If the model keeps its layers elsewhere, or quantised.
    """
    if world_size() == 1:
        raise ValueError(one_process("shard_base"))
    if torch.device(device).type == "cpu" and dist.get_backend() == "nccl":
        raise ValueError(
            "The base is to be spread on the CPU, and this process group carries tensors of GPUs "
            "alone: join it with the backend cpu:gloo,cuda:nccl, or choose a CUDA device."
        )
    adapted = hasattr(model, "peft_config")
    lm = model.get_base_model() if adapted else model
    if getattr(lm, "is_quantized", False):
        raise UnsupportedModelError("A quantised base cannot be sharded: choose one of both.")
    layers = getattr(decoder_of(lm), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedModelError(
            f"{name_of(lm)} keeps its layers elsewhere than in `layers`, so its base cannot be "
            "sharded: leave shard_base false."
        )
    mesh = init_device_mesh(torch.device(device).type, (world_size(),))
    for layer in layers:
        ignored = {p for p in layer.parameters() if adapted and p.requires_grad}
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=ignored)
    unsharded = [p for p in model.parameters() if not isinstance(p, DTensor)]
    for tensor in (*unsharded, *model.buffers()):
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


@dataclass(frozen=True)
class SpreadPoint:
    """θ + ηv of one spread parameter, added up when its layer is gathered.

    Attributes:
        direction: v, sharded as the parameter.
        eta: η, which may be a dual number.
    """

    direction: Tensor
    eta: Tensor | float

    def __repr__(self) -> str:
        return one_line(self, f"of shape {tuple(self.direction.shape)}")

    def at(self, theta: Tensor) -> Tensor:
        """The whole of θ + ηv, from the whole of θ."""
        return moved_along(theta.detach(), whole(self.direction), self.eta)


def moved_along(theta: Tensor, direction: Tensor, eta: Tensor | float) -> Tensor:
    """θ + ηv of one parameter, added in float64 and rounded to the parameter's type."""
    return (theta.double() + eta * direction.to(theta.device, torch.float64)).to(theta.dtype)


Parameters = Mapping[str, Tensor | SpreadPoint]
"""Parameters to use in place of θ, by name; a sharded tensor stands for the model's own."""


@contextmanager
def layers_at(model: nn.Module, point: Parameters) -> Generator[None]:
    """A block in which the layers that are spread have other parameters.

    Args:
        model: Whose layers they are.
        point: The parameters; those that are not a `SpreadPoint` are left to the caller.

    Yields:
        Nothing.
    """
    spread_points = {n: x for n, x in point.items() if isinstance(x, SpreadPoint)}

    def replace(name: str, owner: nn.Module, leaf: str, gathered: Tensor) -> None:
        if name in spread_points:
            owner._parameters[leaf] = spread_points[name].at(gathered)  # type: ignore[assignment]

    with _when_gathered(model, replace) if spread_points else ExitStack():
        yield


@contextmanager
def layer_gradients(theta: Vector, model: nn.Module) -> Generator[Vector]:
    """A block of one forward and one backward pass, which gives the gradients of what is spread.

    Args:
        theta: The trainable parameters.
        model: Whose layers they are in.

    Yields:
        The gradients by name, filled by the backward pass: sums over processes, float64.
    """
    gradients: Vector = {}
    handles: list[Any] = []

    def watch(name: str, owner: nn.Module, leaf: str, gathered: Tensor) -> None:
        def add_up(parameter: Tensor) -> None:
            if parameter.grad is None:  # a layer that ran twice calls this twice
                return
            sums = summed_in_parts(parameter.grad.double(), theta[name])
            gradients[name] = gradients[name] + sums if name in gradients else sums
            parameter.grad = None  # FSDP2 then has nothing to reduce

        if gathered.requires_grad:
            handles.append(gathered.register_post_accumulate_grad_hook(add_up))

    try:
        with _when_gathered(model, watch):
            yield gradients
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _when_gathered(
    model: nn.Module, visit: Callable[[str, nn.Module, str, Tensor], None]
) -> Generator[None]:
    """A block in which a function is called with each parameter of a layer that was gathered.

    If the block fails, every layer is θ's part again, ready for a next pass.
    """
    layers = [(prefix, x) for prefix, x in model.named_modules() if isinstance(x, FSDPModule)]
    with ExitStack() as stack:
        for prefix, module in layers:
            layer: Any = module
            places = [  # of each sharded parameter, while it is not gathered
                (f"{path}.{leaf}", owner, leaf)
                for path, owner in layer.named_modules(prefix=prefix)
                for leaf, parameter in owner._parameters.items()
                if is_sharded(parameter)
            ]

            def visit_all(*_: object, places: list[tuple[str, nn.Module, str]] = places) -> None:
                for name, owner, leaf in places:
                    visit(name, owner, leaf, owner._parameters[leaf])  # type: ignore[arg-type]

            stack.callback(layer.register_forward_pre_hook(visit_all).remove)
        try:
            yield
        except BaseException:  # raised again: also an interrupted pass leaves layers gathered
            ran = [x for _, x in layers if x._get_fsdp_state()._is_root is not None]
            for layer in ran:
                getattr(layer, "reset_iter_state", layer.reshard)()  # newer torch resets more
            raise
