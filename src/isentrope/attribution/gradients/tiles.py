"""Finished tiles of a kernel on disk, for a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from isentrope.attribution.gradients.storage_plan import GradientOptions, StoragePlan
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.nouns.vectors import Vector, tensor_bytes
from isentrope.policy.language_model import Policy
from isentrope.system.files import sha256, write_file
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
        head = (repr(plan), policy.temperature, repr(policy.precision), gradients, kinds)
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
