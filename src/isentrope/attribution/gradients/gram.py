"""Inner products of gradients, G P G'ᵀ, in tiles, without holding all gradients at once (T7).

    M_ij = <g_i, P g'_j>,     g_i = ∂_θ Σ_k (a_ik s_ik + b_ik H_ik)

One side is held as `storage_plan` says; the other side is streamed: each layer's rows are
multiplied with the held ones as soon as autograd has them, and then dropped. Sums over layers are
float64.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.sketch import Projection, Sketch
from isentrope.attribution.gradients.storage_plan import (
    GradientOptions,
    Storage,
    StoragePlan,
    plan_storage,
)
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.nouns.vectors import Vector, require_same_names
from isentrope.parallel.sharded import largest_part, local_part
from isentrope.policy.language_model import Policy
from isentrope.policy.short_memory import tried_again
from isentrope.system.memory import free_memory


def gram(
    policy: Policy,
    left: TokenSum,
    right: TokenSum | None = None,
    preconditioner: Vector | None = None,
    gradients: GradientOptions = GradientOptions(),
    sketch: Sketch | None = None,
) -> Tensor:
    """The matrix of inner products <g_left, P g_right>.

    Args:
        policy: The policy.
        left: Functions whose gradients are the rows.
        right: Functions whose gradients are the columns; None: those of `left`.
        preconditioner: P, diagonal, by parameter name; None for 1.
        gradients: How gradients are computed, and those of the smaller side held.
        sketch: How far gradients are projected; None: the matrix is exact.

    Returns:
        (rows of left, rows of right) float64, on the CPU.
    """
    projection = None if sketch is None else Projection(policy, sketch, preconditioner)
    like = policy.parts if projection is None else projection.like(policy.theta)
    n_right = None if right is None else right.n_rows
    plan = gram_plan(policy, left.n_rows, n_right, gradients.storage, like)
    held, streamed = (left, right or left) if plan.hold_left else (right or left, left)
    tiles = _Tiles(
        computed=SequenceGradients(policy, gradients.backend),  # refuses unsupported layers
        held=held,
        streamed=streamed,
        symmetric=right is None,
        like=like,
        storage=gradients.storage,
        P=_flat_preconditioner(policy, preconditioner) if projection is None else {},
        projection=projection,
    )
    out = torch.zeros(held.n_rows, streamed.n_rows, dtype=torch.float64)
    more = max(held.rollouts, streamed.rollouts, key=len)
    for start, end in plan.tiles:
        out[start:end] += tried_again(policy, more, partial(tiles.compute, start, end))
    if right is None:
        out = out.triu() + out.triu(1).T  # tiles are computed on and above the diagonal only
    return out if plan.hold_left else out.T.contiguous()


def _flat_preconditioner(policy: Policy, preconditioner: Vector | None) -> Vector:
    """What this process holds of P, as rows of gradients are laid out; empty for 1."""
    if preconditioner is None:
        return {}
    require_same_names(policy.theta, preconditioner)
    parts = policy.parts.items()
    return {n: local_part(preconditioner[n]).flatten().to(p) for n, p in parts}


@dataclass(frozen=True)
class _Tiles:
    """Some rows of the matrix at a time: their gradients are held, all others are streamed.

    Attributes:
        computed: Gives the gradients layer by layer.
        held: The side that tiles are of.
        streamed: The other side.
        symmetric: Whether both are one.
        like: What is held of one gradient.
        storage: How it is held.
        P: The preconditioner by parameter, (d,); empty for 1, and where P^½ is in both projected
            sides.
        projection: Of the gradients; None for none.
    """

    computed: SequenceGradients
    held: TokenSum
    streamed: TokenSum
    symmetric: bool
    like: Vector
    storage: Storage
    P: Vector
    projection: Projection | None

    def compute(self, start: int, end: int) -> Tensor:
        """(end − start, all streamed rows); of a symmetric matrix only what is not below it."""
        policy = self.computed.policy
        rows_of_all = self.streamed.n_rows
        out = torch.zeros(end - start, rows_of_all, dtype=torch.float64, device=policy.device)
        with policy.precision.active(forward_mode=False):
            rows = GradientStore(self.like, end - start, self.storage)

            def keep(name: str, places: Tensor, new: Tensor) -> None:
                rows.add(name, places, self._project(name, new))

            self.computed.visit(self.held.rows_between(start, end, shift=start), keep)
            policy.complete_rows(rows.tensors)
            if self.symmetric:
                counted_here = policy.rows_to_count(end - start)
                for name in policy.names:
                    block = rows.block(name)
                    products = self._scale(name, block[counted_here]) @ block.T
                    out[counted_here, start:end] += products.double()

            def multiply(name: str, columns: Tensor, new: Tensor) -> None:
                scaled = self._scale(name, self._project(name, new).flatten(1))
                products = scaled @ rows.block(name).T  # (b, tile)
                out.index_add_(1, columns, products.double().T)

            first = end if self.symmetric else 0  # rows before the tile were met by earlier tiles
            if first < rows_of_all:
                self.computed.visit(self.streamed.rows_between(first, rows_of_all), multiply)
        policy.sum_over_processes([out])
        return out.cpu()

    def _scale(self, name: str, rows: Tensor) -> Tensor:
        return rows * self.P[name] if self.P else rows

    def _project(self, name: str, gradients: Tensor) -> Tensor:
        return gradients if self.projection is None else self.projection.of(name, gradients)


def gram_diagonals(
    policy: Policy,
    sides: tuple[TokenSum, TokenSum],
    preconditioner: Vector | None = None,
    gradients: GradientOptions = GradientOptions(),
    sketch: Sketch | None = None,
) -> tuple[Tensor, Tensor]:
    """The squared norms <g_i, P g_i> of both sides of a matrix: another pass over each.

    Args:
        policy: The policy.
        sides: Functions whose gradients are the rows, and the columns.
        preconditioner: P, diagonal, by parameter name; None for 1.
        gradients: How gradients are computed, and those of one tile of the matrix held.
        sketch: How far gradients are projected; None: the norms are exact.

    Returns:
        (rows,) and (columns,) float64, on the CPU.
    """
    like = None if sketch is None else Projection(policy, sketch, None).like(policy.theta)
    plan = gram_plan(policy, sides[0].n_rows, sides[1].n_rows, gradients.storage, like)
    size = max(end - start for start, end in plan.tiles)

    diagonals: list[Tensor] = []
    for side in sides:
        parts = (side.rows_between(k, k + size, shift=k) for k in range(0, side.n_rows, size))
        blocks = (gram(policy, part, None, preconditioner, gradients, sketch) for part in parts)
        diagonals.append(torch.cat([block.diagonal() for block in blocks]))
    return diagonals[0], diagonals[1]


def gram_plan(
    policy: Policy,
    n_left: int,
    n_right: int | None,
    storage: Storage,
    like: Vector | None = None,
) -> StoragePlan:
    """What a matrix will hold, before it starts.

    Args:
        policy: The policy.
        n_left: Rows.
        n_right: Columns; None: the rows with themselves.
        storage: What may be held.
        like: What is held of one gradient; None: all of it.

    Returns:
        The plan.
    """
    if policy.device.type == "cuda":
        storage = storage.within(min(policy.gather_lists([free_memory(policy.device)])))
    tensors = policy.theta if like is None or policy.spreads_theta else like
    size = sum(largest_part(p) for p in tensors.values())  # as many tiles on every process
    element = max(p.element_size() for p in policy.theta.values())
    return plan_storage(n_left, n_right, size, element, storage)
