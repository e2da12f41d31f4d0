"""Where the gradients of the smaller side are held, and in how many tiles (T7).

A Gram matrix of n × n' gradients in d parameters needs one side held, d numbers per row, while the
other side is streamed layer by layer. If that is more than the memory allows, the held side
is cut into T tiles of whole rows, and the other side is streamed T times:

    time in forward+backward passes over a sequence     n_held + T · n_streamed
    (one batch with itself: tile k meets the rows after it only)

Tiles, the CPU and the disk give the same numbers. bfloat16 halves a row and int8 (blocks of 64
with a scale each) quarters it, with relative errors of about 2e-4 and 1e-3 in the matrix: they are
used only on request.

How the gradients of sequences are computed and held, in one object for every attribution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

INT8_BLOCK = 64

Kept = Literal["exact", "bfloat16", "int8"]
StoragePlace = Literal["device", "cpu", "disk"]


@dataclass(frozen=True)
class Storage:
    """How gradients may be held.

    Attributes:
        memory: Bytes that the held gradients may take; None for no limit on the CPU, and half of
            a device's free memory. The model, its activations and the result are not counted.
        kept: "exact" at the runtime dtype, or "bfloat16" or "int8", which round.
        where: "device" with the model, "cpu", or "disk" (a temporary file per parameter; the memory
            is then not a limit).
    """

    memory: int | None = None
    kept: Kept = "exact"
    where: StoragePlace = "device"

    def within(self, free: int) -> Storage:
        """The same; without a limit of its own, half of a device's free memory is one.

        Args:
            free: Bytes.

        Returns:
            A limit that is a power of two: free memory is not the same twice.
        """
        if self.memory is not None or self.where != "device":
            return self
        return replace(self, memory=2 ** (max(free // 2, 1).bit_length() - 1))


@dataclass(frozen=True)
class StoragePlan:
    """Which gradients are held.

    Attributes:
        hold_left: Whether rows of the left side are held; else those of the right.
        tiles: (start, end) rows of each tile of the held side.
        row_bytes: Bytes of one held gradient.
    """

    hold_left: bool
    tiles: tuple[tuple[int, int], ...]
    row_bytes: int

    @property
    def held_bytes(self) -> int:
        """Largest number of bytes held at once."""
        return max(end - start for start, end in self.tiles) * self.row_bytes


def plan_storage(
    n_left: int, n_right: int | None, parameters: int, element: int, storage: Storage
) -> StoragePlan:
    """Decide what to hold.

    Args:
        n_left: Rows of the left side.
        n_right: Rows of the right side; None: the left side with itself.
        parameters: d.
        element: Bytes of a number at the runtime dtype.
        storage: What is allowed.

    Returns:
        The plan with the fewest passes: the smaller side, in as few tiles as fit.

    Raises:
        ValueError: If not one row fits.
    """
    hold_left = n_right is None or n_left <= n_right
    smaller = fit = n_left if n_right is None else min(n_left, n_right)
    row = parameters * {"exact": element, "bfloat16": 2, "int8": 1}[storage.kept]
    if storage.kept == "int8":
        row += 4 * -(-parameters // INT8_BLOCK)
    if storage.memory is not None and storage.where != "disk":
        fit = min(smaller, storage.memory // row)
        if fit < 1:
            raise ValueError(
                f"A memory of {storage.memory:,} bytes does not hold one gradient of {parameters:,}"
                f" parameters: the smallest that works is {row:,} bytes ({storage.kept}); or hold "
                "them on disk."
            )
    count = -(-smaller // fit)
    edges = (round(k * smaller / count) for k in range(count + 1))
    return StoragePlan(hold_left, tuple(pairwise(edges)), row)


GradientBackend = Literal["hooks", "loop"]


@dataclass(frozen=True)
class GradientOptions:
    """How the gradients of sequences are computed and held.

    Attributes:
        backend: "hooks": one backward pass per micro-batch; "loop": one per sequence, which is
            exact for every kind of layer and slower.
        storage: How the gradients of the smaller side may be held; without limit by default.
    """

    backend: GradientBackend = "hooks"
    storage: Storage = Storage()
