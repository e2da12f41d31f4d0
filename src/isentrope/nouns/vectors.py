"""Named parameter vectors.

One tensor per trainable parameter, keyed by the model's own names: a direction v, a gradient g_H, a
preconditioner P and the parameters θ themselves all have this form, so their products are sums over
names. Arithmetic is float64. Where θ is spread over processes all of them are, and every process
must ask for an inner product.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from isentrope.parallel.sharded import add_parts, local_part, total

COLUMNS_AT_A_TIME = 2**18
"""Entries of a parameter of which inner products are taken at a time."""

Vector = dict[str, Tensor]
"""Parameter name → tensor of the parameter's shape."""


def require_same_names(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """Refuse two vectors that are not over the same parameters.

    Raises:
        ValueError: If the names or the shapes differ; the message names the first of them.
    """
    if unmatched := set(a) ^ set(b):
        raise ValueError(
            f"The two vectors are over different parameters: {sorted(unmatched)[0]!r} is in one of "
            f"them only ({len(unmatched)} such names). Use the model's parameter names in both."
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
    add_parts(products, weights)
    return products.cpu()


def root_mean_square(values: Tensor) -> float:
    """√ mean x²."""
    return float(values.square().mean().sqrt())


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
