"""The heap of glibc, followed by the sizes of blocks: what it keeps resident of freed ones.

A block of `limit` bytes and more has pages of its own, which go back when it is freed. A smaller
one goes into the smallest hole that it fits, else to the end of the heap. A hole stays resident
until the library gives free memory back (`isentrope.system.heap`). torch asks for aligned blocks,
and before glibc 2.38 such a block fits only where there is room for `ALIGNED` more bytes: the
hole of a block of its own size is too small.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from isentrope.system.heap import KEPT

ALIGNED = 64 + 32
"""Bytes that an aligned block needs beside its own: the alignment, and the smallest block."""

HEADER = 16
"""Bytes before each block."""

LEAST = 2**16
"""Bytes from which on blocks are followed one by one; smaller ones are counted alone."""


class Heap:
    """Blocks that are alive and holes between them.

    Attributes:
        limit: Bytes from which on a block has pages of its own.
        free: Resident bytes of holes.
    """

    def __init__(self, limit: int) -> None:
        """An empty heap."""
        self.limit = limit
        self.free = 0
        self._end = 0
        self._holes: list[tuple[int, int]] = []  # first byte and the one behind, in order
        self._gone: list[tuple[int, int]] = []  # parts of holes that are not resident, in order
        self._placed: dict[int, tuple[int, int]] = {}

    def take(self, key: int, size: int) -> None:
        """A new block.

        Args:
            key: Its name; that of no other block that is alive.
            size: Bytes.
        """
        whole = size + HEADER
        if size < LEAST or whole + ALIGNED >= self.limit:
            return
        fits = [(b - a, a) for a, b in self._holes if b - a >= whole + ALIGNED]
        if fits:
            room, start = min(fits)
            end = start + room
            self._holes.remove((start, end))
            if room > whole:
                insort(self._holes, (start + whole, end))
            self.free -= whole - self._touched(start, start + whole)
        else:
            start, self._end = self._end, self._end + whole
        self._placed[key] = start, start + whole

    def drop(self, key: int) -> None:
        """A block is freed.

        Args:
            key: That it was taken with.
        """
        placed = self._placed.pop(key, None)
        if placed is None:
            return
        start, end = placed
        self.free += end - start
        i = bisect_left(self._holes, (start, end))
        if i < len(self._holes) and self._holes[i][0] == end:
            end = self._holes.pop(i)[1]
        if i and self._holes[i - 1][1] == start:
            start = self._holes.pop(i - 1)[0]
        insort(self._holes, (start, end))

    def give_back(self) -> None:
        """What `isentrope.system.heap.give_back_free_memory` does."""
        if sum(b - a for a, b in self._holes) > KEPT:
            self._gone, self.free = list(self._holes), 0

    def _touched(self, start: int, end: int) -> int:
        """Bytes of a part that become resident by being used."""
        i = max(bisect_right(self._gone, (start, start)) - 1, 0)
        found, kept = 0, []
        while i < len(self._gone) and self._gone[i][0] < end:
            a, b = self._gone[i]
            if b <= start:
                i += 1
                continue
            found += min(b, end) - max(a, start)
            self._gone.pop(i)
            kept += [part for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
        for part in kept:
            insort(self._gone, part)
        return found
