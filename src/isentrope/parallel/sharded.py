"""Tensors of which every process holds a part.

They are rows, as FSDP2 deals them (DTensor, Shard(0)). Arithmetic on them is elementwise, each
process on its part. A sum over all entries is exchanged, so every process must ask for it. A tensor
that is not sharded goes through every function here as it is.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def read_numbers(scalars: Iterable[Tensor]) -> list[float]:
    """The values of scalar tensors, of which a device is asked once, whatever their number."""
    complete = [x.full_tensor() if isinstance(x, DTensor) else x for x in scalars]
    if not complete:
        return []
    return torch.stack([x.double().to(complete[0].device) for x in complete]).tolist()


def first_false(flags: Mapping[str, Tensor]) -> str | None:
    """The first name whose scalar is zero, all read at once; None where there is none."""
    numbers = read_numbers(flags.values())
    return next((name for name, x in zip(flags, numbers, strict=True) if not x), None)


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is held in parts."""
    return isinstance(tensor, DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that may be sharded; without a gradient, where it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():  # an identity that functional transforms could not trace
        return tensor.to_local()


def largest_part(tensor: Tensor) -> int:
    """Numbers of a tensor that one process holds at most; the same on every process."""
    if not isinstance(tensor, DTensor):
        return tensor.numel()
    rows = tensor.shape[0]
    return -(-rows // tensor.device_mesh.size()) * (tensor.numel() // max(rows, 1))


def with_part(part: Tensor, like: Tensor) -> Tensor:
    """A tensor sharded as another, from this process's part; the part itself where it is not.

    Args:
        part: Of the shape of `local_part(like)`.
        like: What it is sharded like.

    Returns:
        A tensor of the shape of `like`, and the type of `part`.
    """
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on every process, as one that is held like another.

    Args:
        tensor: The tensor.
        like: One of the same shape that may be sharded.

    Returns:
        On the device of `like`; a copy of this process's part where it is sharded.
    """
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    mesh = like.device_mesh
    rows = -(-len(tensor) // mesh.size())
    part = tensor[rows * mesh.get_local_rank() :][:rows]
    return with_part(part.to(like.device, copy=True).contiguous(), like)


def split_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, sharded as another is; where that is not, the tensor itself, where it is."""
    return sharded_like(tensor, like) if isinstance(like, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all processes, on each of them; also inside of jvp."""
    if not isinstance(tensor, DTensor):
        return tensor
    part = local_part(tensor)
    mesh = tensor.device_mesh
    shape = tensor.shape
    rows = -(-shape[0] // mesh.size())
    padded = part.new_zeros(rows, *shape[1:])
    padded[: len(part)] = part
    gathered = part.new_empty(rows * mesh.size(), *shape[1:])
    dist.all_gather(list(gathered.chunk(mesh.size())), padded, group=mesh.get_group())
    return gathered[: shape[0]]


def summed_in_parts(addend: Tensor, like: Tensor) -> Tensor:
    """The sum over processes of whole tensors, held like another one.

    Args:
        addend: What this process adds, whole.
        like: A sharded tensor of the same shape.

    Returns:
        Of the type of `addend`.
    """
    assert isinstance(like, DTensor)
    sums = DTensor.from_local(addend, like.device_mesh, [Partial()], run_check=False)
    return sums.redistribute(like.device_mesh, like.placements)


def add_parts(sums: Tensor, like: Tensor) -> None:
    """Add up over processes, in place, what each has computed from its part of a sharded tensor.

    Args:
        sums: Of this process, of one shape on all of them; complete where `like` is not sharded.
        like: The tensor that it holds a part of.
    """
    if isinstance(like, DTensor):
        dist.all_reduce(sums, group=like.device_mesh.get_group())


def total(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> list[float]:
    """Numbers by name, added up over processes where the tensors of these names are sharded.

    Args:
        values: A scalar of each, of what this process holds.
        like: The tensors, or others held like them.

    Returns:
        In the order of `values`.
    """
    sharded = [n for n in values if isinstance(like[n], DTensor)]
    if sharded:
        sums = torch.stack([values[n].double() for n in sharded])
        add_parts(sums, like[sharded[0]])
        values = {**values, **dict(zip(sharded, sums, strict=True))}
    return read_numbers(values.values())
