"""Free memory of the process given back to the system.

A backward pass makes and frees thousands of activations. The allocator of glibc keeps freed blocks
of up to 32 MiB, and before glibc 2.38 an aligned block does not fit where one of its size was. So a
gradient takes twice the memory of what is alive, and leaves 4.6 GB behind in a model of half a
billion parameters. Blocks that are mapped one by one are given back at once. Their pages have to be
cleared each time: 6 % of the time of a gradient of the toy, but as much again as a forward-mode
pass takes, which therefore leaves the allocator as it is. Sampling maps its blocks too.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Generator
from contextlib import contextmanager

KEPT = 2**27
"""Bytes of free blocks that the allocator may keep."""


MAPPED = 2**20
"""Bytes from which on `map_large_blocks` gives a block pages of its own."""

LARGEST_KEPT = 2**25
"""Bytes up to which glibc keeps freed blocks."""

_M_MMAP_THRESHOLD = -3
"""Of <malloc.h>."""


class _Numbers(ctypes.Structure):
    """`struct mallinfo2` of glibc; `fordblks` is the bytes of free blocks of the heap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def give_back_free_memory() -> None:
    """Give free blocks of the heap back to the system, where there are more than `KEPT` bytes.

    Does nothing where the C library is not glibc 2.33 or later.
    """
    library = _glibc()
    if library is None:
        return
    library.mallinfo2.restype = _Numbers
    if library.mallinfo2().fordblks > KEPT:
        library.malloc_trim(0)


@contextmanager
def mapped_blocks() -> Generator[None]:
    """A block in which `MAPPED` bytes and more are given back as soon as they are freed.

    Does nothing where the C library is not glibc 2.33 or later.

    Yields:
        Nothing.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_M_MMAP_THRESHOLD, MAPPED)
    try:
        yield
    finally:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallinfo2") else None
