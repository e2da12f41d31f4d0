"""Free memory of the process given back to the system.

A backward pass makes and frees thousands of activations. The allocator of glibc keeps freed blocks
of up to 32 MiB, and before glibc 2.38 an aligned block does not fit where one of its size was.
Blocks that are mapped one by one are given back at once. Their pages have to be cleared each time:
up to a third of the time of a gradient of the toy, and as much again as a forward-mode pass takes,
which therefore leaves the allocator as it is. So does a small process, which has little to give
back. What it saves is in docs/results/plan.md.
"""

import ctypes
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import psutil

SMALL = 2**31
"""Resident bytes up to which a process keeps what it has freed."""

MAPPED = 2**20
"""Bytes from which on `mapped_blocks` gives a block pages of its own."""

LARGEST_KEPT = 2**25
"""Bytes up to which glibc keeps freed blocks."""

_M_MMAP_THRESHOLD = -3
"""Of <malloc.h>."""

_KEPT: ContextVar[bool] = ContextVar("_KEPT", default=False)


@contextmanager
def kept_blocks() -> Generator[None]:
    """A block in which `mapped_blocks` does nothing: between passes of training, which are larger.

    Yields:
        Nothing.
    """
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


@contextmanager
def mapped_blocks() -> Generator[None]:
    """A block in which `MAPPED` bytes and more are given back as soon as they are freed.

    What is free before it and after it is given back too. Does nothing without glibc, or where the
    process is small as the block begins.

    Yields:
        Nothing.
    """
    library = _glibc()
    if library is None or _KEPT.get() or psutil.Process().memory_info().rss <= SMALL:
        yield
        return
    library.malloc_trim(0)
    library.mallopt(_M_MMAP_THRESHOLD, MAPPED)
    try:
        yield
    finally:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.malloc_trim(0)  # blocks that found a hole of the heap were not mapped


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
