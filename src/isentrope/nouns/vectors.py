"""Named parameter vectors, whole or spread over processes.

One tensor per trainable parameter, keyed by the model's own names: a direction v, a gradient g_H, a
preconditioner P and the parameters θ themselves all have this form, so their products are sums over
names. Arithmetic is float64.

Where θ is spread over processes all vectors are: each process holds some rows of every tensor, as
FSDP2 deals them (DTensor, Shard(0)). Elementwise arithmetic is on the rows that a process holds. A
sum over all entries, such as an inner product, is exchanged, so every process must ask for it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def read_numbers(scalars: Iterable[Tensor]) -> list[float]:
    """The values of scalar tensors, of which a device is asked once, whatever their number."""
    values = [x.full_tensor() if isinstance(x, DTensor) else x for x in scalars]
    if not values:
        return []
    return torch.stack([x.double().to(values[0].device) for x in values]).tolist()


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


def sharded_like(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on every process, as one that is held like another.

    Args:
        whole: The tensor.
        like: One of the same shape that may be sharded.

    Returns:
        On the device of `like`; a copy of this process's part where it is sharded.
    """
    if not isinstance(like, DTensor):
        return whole.to(like.device)
    mesh = like.device_mesh
    rows = -(-len(whole) // mesh.size())
    part = whole[rows * mesh.get_local_rank() :][:rows]
    return with_part(part.to(like.device, copy=True).contiguous(), like)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all processes, on each of them; also inside of jvp."""
    if not isinstance(tensor, DTensor):
        return tensor
    part = local_part(tensor)
    mesh = tensor.device_mesh
    shape = tensor.shape
    rows = -(-shape[0] // mesh.size())
    padded = part.new_zeros(rows, *shape[1:])  # every process sends equally many rows
    padded[: len(part)] = part
    gathered = part.new_empty(rows * mesh.size(), *shape[1:])
    dist.all_gather(list(gathered.chunk(mesh.size())), padded, group=mesh.get_group())
    return gathered[: shape[0]]


def summed_in_parts(term: Tensor, like: Tensor) -> Tensor:
    """The sum over processes of whole tensors, held like another one.

    Args:
        term: What this process adds, whole.
        like: A sharded tensor of the same shape.

    Returns:
        Of the type of `term`.
    """
    assert isinstance(like, DTensor)
    sums = DTensor.from_local(term, like.device_mesh, [Partial()], run_check=False)
    return sums.redistribute(like.device_mesh, like.placements)


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
        first = like[sharded[0]]
        assert isinstance(first, DTensor)
        dist.all_reduce(sums, group=first.device_mesh.get_group())
        values = {**values, **dict(zip(sharded, sums, strict=True))}
    return read_numbers(values.values())


COLUMNS_AT_A_TIME = 2**18
"""Entries of a parameter of which inner products are taken at a time."""

Vector = dict[str, Tensor]
"""Parameter name → tensor of the parameter's shape."""


def require_same_names(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """Refuse two vectors that are not over the same parameters.

    Raises:
        ValueError: If the names or the shapes differ; the message names the first of them.
    """
    if only := set(a) ^ set(b):
        raise ValueError(
            f"The two vectors are over different parameters: {sorted(only)[0]!r} is in one of "
            f"them only ({len(only)} such names). Use the model's parameter names in both."
        )
    for name, tensor in a.items():
        if tensor.shape != b[name].shape:
            raise ValueError(
                f"Parameter {name!r} has shape {tuple(tensor.shape)} in one vector and "
                f"{tuple(b[name].shape)} in the other."
            )


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Inner product <a, b>, summed in float64."""
    require_same_names(a, b)
    products: Vector = {}
    for name, x in a.items():
        left = local_part(x).double().flatten()
        right = local_part(b[name]).double().flatten()
        products[name] = torch.dot(left, right.to(left.device))
    return math.fsum(total(products, a))


def weighted_products(rows: Sequence[Tensor], weights: Tensor) -> Tensor:
    """All inner products <x_i, P x_j> of one parameter of some vectors.

    Args:
        rows: (n_k, d) of each of several sets of vectors, what this process holds of them.
        weights: P, diagonal, of the parameter's shape, and sharded as it is.

    Returns:
        (n, n) float64 on the CPU, of all vectors in order.
    """
    n = sum(map(len, rows))
    diagonal = local_part(weights).flatten()
    products = torch.zeros(n, n, dtype=torch.float64, device=rows[0].device)
    for start in range(0, diagonal.numel(), COLUMNS_AT_A_TIME):
        block = slice(start, start + COLUMNS_AT_A_TIME)
        columns = torch.cat([x[:, block] for x in rows]).double()
        products += (columns * diagonal[block].to(columns)) @ columns.T
    if isinstance(weights, DTensor):
        dist.all_reduce(products, group=weights.device_mesh.get_group())
    return products.cpu()


def norm(a: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all parameters."""
    return math.sqrt(dot(a, a))


def axpy(scale: float, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Vector:
    """The vector scale * x + y in float64.

    Args:
        scale: Multiplier of x.
        x: A named vector.
        y: Another over the same parameters.

    Returns:
        A new vector; x and y are not changed.
    """
    require_same_names(x, y)
    return {name: y[name].double() + scale * x[name].double().to(y[name].device) for name in y}


def zeros(like: Mapping[str, Tensor]) -> Vector:
    """The vector of zeros, in float64."""
    return {name: torch.zeros_like(x, dtype=torch.float64) for name, x in like.items()}


def multiply(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Vector:
    """Elementwise product (a diagonal preconditioner applied to a gradient), in float64."""
    require_same_names(a, b)
    return {name: a[name].double() * b[name].double().to(a[name].device) for name in a}


def tensor_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor, row by row, for digests; of a sharded one, this process's part."""
    part = local_part(tensor).detach().cpu().contiguous()
    return part.flatten().view(torch.uint8).numpy().tobytes()
