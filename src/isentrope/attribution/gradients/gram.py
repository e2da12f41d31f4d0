"""Inner products of gradients, G P G'ᵀ, in tiles, without holding all gradients at once (T7).

    M_ij = <g_i, P g'_j>,     g_i = ∂_θ Σ_k (a_ik s_ik + b_ik H_ik)

One side is held as `storage_plan` says; the other side is streamed: each layer's rows are
multiplied with the held ones as soon as autograd has them, and then dropped. Sums over layers are
float64.

Finished tiles may be kept on disk, from which a run that was killed goes on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import (
    GradientOptions,
    Storage,
    StoragePlan,
    plan_storage,
)
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.nouns.vectors import (
    Vector,
    largest_part,
    local_part,
    require_same_names,
    tensor_bytes,
)
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring_batches import tried_again
from isentrope.system.files import sha256, write_file
from isentrope.system.memory import free_memory
from isentrope.system.reading import read_tensors

_CURE = "Remove the file: the same computation makes it again."


class Tiles:
    """Finished tiles on disk, named by a fingerprint of everything they depend on."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        sides: tuple[TokenSum, TokenSum],
        preconditioner: Vector | None,
        plan: StoragePlan,
        gradients: GradientOptions,
    ) -> None:
        """Name the tiles of one kernel.

        Args:
            folder: Where they are.
            policy: The policy.
            sides: The side that is held, and the one that is streamed.
            preconditioner: P; None for 1.
            plan: Which rows a tile has.
            gradients: How gradients are computed and held.
        """
        self._folder, self._ranks = folder, policy.ranks
        kinds = tuple(side.of_training for side in sides)
        rows = plan.hold_left, plan.tiles  # and not the limit, which follows a device's free memory
        head = (rows, policy.temperature, repr(policy.precision), gradients, kinds)
        vectors = (dict(policy.model.named_parameters()), preconditioner or {})
        self._name = sha256(
            chain(
                [repr(head).encode()],
                *(_bytes_of(side) for side in sides),
                (
                    part
                    for vector in vectors
                    for n, x in vector.items()
                    for part in (n.encode(), tensor_bytes(x))  # joined, they would be copied
                ),
            )
        )[:16]
        if policy.sharded:  # each process has read its part of the weights
            self._name = sha256(x.encode() for x in self._ranks.all_of([self._name]))[:16]

    def _path(self, k: int) -> Path:
        return self._folder / f"tile_{self._name}_{k}.safetensors"

    def load(self, k: int) -> Tensor | None:
        """A finished tile; of several processes, what the first finds.

        Args:
            k: Its number.

        Returns:
            The tile, or None where there is none.
        """
        path = self._path(k)
        return self._ranks.from_first(
            lambda: read_tensors(path, _CURE)["tile"] if path.exists() else None
        )

    def save(self, k: int, tile: Tensor) -> None:
        """Write a tile atomically.

        Args:
            k: Its number.
            tile: The tile.
        """
        if self._ranks.own == 0:
            content = {"tile": tile.contiguous()}
            write_file(self._path(k), lambda partial: save_file(content, partial))


def _bytes_of(side: TokenSum) -> Iterator[bytes]:
    """What the tiles of one side depend on."""
    for ids in (*side.rollouts.prompt_ids, *side.rollouts.response_ids):
        yield tensor_bytes(ids) + b"|"
    for weights in (side.logprob_weights, side.entropy_weights, side.row_of):
        yield b"-" if weights is None else tensor_bytes(weights)


def gram(
    policy: Policy,
    left: TokenSum,
    right: TokenSum | None = None,
    preconditioner: Vector | None = None,
    gradients: GradientOptions = GradientOptions(),
    *,
    folder: str | Path | None = None,
) -> Tensor:
    """The matrix of inner products <g_left, P g_right>.

    Args:
        policy: The policy.
        left: Functions whose gradients are the rows.
        right: Functions whose gradients are the columns; None: those of `left`.
        preconditioner: P, diagonal, by parameter name; None for 1.
        gradients: How gradients are computed, and those of the smaller side held.
        folder: Where finished tiles are kept; tiles of the same matrix are read from there.

    Returns:
        (rows of left, rows of right) float64, on the CPU.
    """
    if preconditioner is not None:
        require_same_names(policy.theta, preconditioner)
    n_right = None if right is None else right.n_rows
    plan = gram_plan(policy, left.n_rows, n_right, gradients.storage)
    computed = SequenceGradients(policy, gradients.backend)  # refuses unsupported layers
    held, streamed = (left, right or left) if plan.hold_left else (right or left, left)
    scaled = _scaling(policy, preconditioner)
    out = torch.zeros(held.n_rows, streamed.n_rows, dtype=torch.float64)
    kind = (held, streamed), preconditioner, plan, gradients
    files = None if folder is None else Tiles(Path(folder), policy, *kind)
    for k, (start, end) in enumerate(plan.tiles):
        tile = None if files is None else files.load(k)
        if tile is None:
            rows = (start, end)
            parts = computed, held, streamed, scaled, plan.symmetric, rows, gradients.storage
            more = max(held.rollouts, streamed.rollouts, key=len)
            tile = tried_again(policy, more, partial(_tile, *parts))
            if files is not None:
                files.save(k, tile)
        out[start:end] += tile
    if plan.symmetric:
        out = out.triu() + out.triu(1).T  # tiles are computed on and above the diagonal only
    return out if plan.hold_left else out.T.contiguous()


def gram_diagonals(
    policy: Policy,
    sides: tuple[TokenSum, TokenSum],
    preconditioner: Vector | None = None,
    gradients: GradientOptions = GradientOptions(),
) -> tuple[Tensor, Tensor]:
    """The squared norms <g_i, P g_i> of both sides of a matrix: another pass over each.

    Args:
        policy: The policy.
        sides: Functions whose gradients are the rows, and the columns.
        preconditioner: P, diagonal, by parameter name; None for 1.
        gradients: How gradients are computed, and those of one tile of the matrix held.

    Returns:
        (rows,) and (columns,) float64, on the CPU.
    """
    left, right = sides
    plan = gram_plan(policy, left.n_rows, right.n_rows, gradients.storage)
    size = max(end - start for start, end in plan.tiles)
    computed = SequenceGradients(policy, gradients.backend)
    scaled = _scaling(policy, preconditioner)

    def squares(side: TokenSum, start: int, end: int) -> Tensor:
        out = torch.zeros(end - start, dtype=torch.float64, device=policy.device)
        with _held(computed, side, start, end, gradients.storage) as rows:
            for name in policy.names:
                block = rows.block(name)
                out += (scaled(name, block) * block).sum(1).double()
        if policy.spreads_theta:
            policy.ranks.sum([out])
        return out.cpu()

    def diagonal(side: TokenSum) -> Tensor:
        n = side.n_rows
        parts = (partial(squares, side, k, min(k + size, n)) for k in range(0, n, size))
        return torch.cat([tried_again(policy, side.rollouts, part) for part in parts])

    return diagonal(left), diagonal(right)


def gram_plan(policy: Policy, n_left: int, n_right: int | None, storage: Storage) -> StoragePlan:
    """What a matrix will hold and how long it will take, before it starts.

    Args:
        policy: The policy.
        n_left: Rows.
        n_right: Columns; None: the rows with themselves.
        storage: What may be held.

    Returns:
        The plan; `str` is a sentence.
    """
    if policy.device.type == "cuda":
        storage = storage.within(min(policy.ranks.all_of([free_memory(policy.device)])))
    size = sum(largest_part(p) for p in policy.theta.values())  # as many tiles on every process
    element = max(p.element_size() for p in policy.theta.values())
    return plan_storage(n_left, n_right, size, element, storage)


def _tile(
    gradients: SequenceGradients,
    held: TokenSum,
    streamed: TokenSum,
    scaled: Scaling,
    symmetric: bool,
    tile: tuple[int, int],
    storage: Storage,
) -> Tensor:
    """(end − start, all streamed rows); of a symmetric matrix only what is not below it."""
    policy, ranks, (start, end) = gradients.policy, gradients.policy.ranks, tile
    out = torch.zeros(end - start, streamed.n_rows, dtype=torch.float64, device=policy.device)
    with _held(gradients, held, start, end, storage) as rows:
        if symmetric:
            own = torch.arange(end - start, device=policy.device)
            if not policy.spreads_theta:
                own = own.tensor_split(ranks.size)[ranks.own]
            for name in policy.names:
                block = rows.block(name)
                out[own, start:end] += (scaled(name, block[own]) @ block.T).double()  # (own, tile)

        def multiply(name: str, columns: Tensor, new: Tensor) -> None:
            products = scaled(name, new.flatten(1)) @ rows.block(name).T  # (b, tile)
            out.index_add_(1, columns, products.double().T)

        first = end if symmetric else 0  # rows before the tile were met by earlier tiles
        if first < streamed.n_rows:
            gradients.visit(_rows_of(streamed, first, streamed.n_rows), multiply)
    ranks.sum([out])
    return out.cpu()


@contextmanager
def _held(
    gradients: SequenceGradients, side: TokenSum, start: int, end: int, storage: Storage
) -> Iterator[GradientStore]:
    """All rows from start to end; of θ that is spread, this process's parts of them."""
    policy = gradients.policy
    with policy.precision.active(forward_mode=False), tempfile.TemporaryDirectory() as folder:
        rows = GradientStore(policy.parts, end - start, storage, Path(folder))
        gradients.visit(_rows_of(side, start, end, shift=start), rows.add)
        if not policy.spreads_theta:
            rows.share(policy.ranks)
        yield rows


Scaling = Callable[[str, Tensor], Tensor]
"""Multiplies (b, size) rows of a parameter by P."""


def _scaling(policy: Policy, preconditioner: Vector | None) -> Scaling:
    if preconditioner is None:
        return lambda _, rows: rows
    flat = {n: local_part(preconditioner[n]).flatten().to(p) for n, p in policy.parts.items()}
    return lambda name, rows: rows * flat[name]


def _rows_of(token_sum: TokenSum, start: int, end: int, shift: int = 0) -> TokenSum:
    """The sequences whose row is in [start, end), rows counted from `shift`."""
    row_of = token_sum.row_of
    inside = ((row_of >= start) & (row_of < end)).nonzero()[:, 0]
    return token_sum.select(inside, row_of[inside] - shift)
