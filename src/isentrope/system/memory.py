"""The memory of the device that a model is on, or is to be on; free memory given back.

A backward pass makes and frees thousands of activations. The allocator of glibc keeps freed blocks
of up to 32 MiB, and before glibc 2.38 an aligned block does not fit where one of its size was.
Blocks that are mapped one by one are given back at once. Their pages have to be cleared each time:
up to a third of the time of a gradient of the toy, and as much again as a forward-mode pass takes,
which therefore leaves the allocator as it is. So does a small process, which has little to give
back. What it saves is in docs/results/plan.md.
"""

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import psutil
import torch

SMALL = 2**31
"""Resident bytes up to which a process keeps what it has freed."""

MAPPED = 2**20
"""Bytes from which on `mapped_blocks` gives a block pages of its own."""

LARGEST_KEPT = 2**25
"""Bytes up to which glibc keeps freed blocks."""

_M_MMAP_THRESHOLD = -3
"""Of <malloc.h>."""

_KEPT: ContextVar[bool] = ContextVar("_KEPT", default=False)

_FULL = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
"""What torch says where memory is full and the error has no class of its own."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full, the host's or a device's."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _FULL)
    )


def give_back() -> None:
    """Give a device's free blocks back, so that the next ones may be of other sizes."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def require_device(device: str) -> None:
    """Refuse a CUDA device that is not there, before the driver is asked for it.

    Args:
        device: cpu, cuda or cuda:N.

    Raises:
        ValueError: If torch sees no such device.
    """
    kind, _, index = device.partition(":")
    devices = torch.cuda.device_count()
    if kind == "cuda" and int(index or 0) >= devices:
        raise ValueError(
            f"checkpoint.device_map={device}, but torch sees {devices or 'no'} CUDA device here."
        )


def free_memory(device: str | torch.device) -> int:
    """Bytes that are free on a device; processes of torchrun share those of a CPU.

    Args:
        device: The CPU, or a CUDA device, of which no other is touched. What torch keeps of a
            device without using it is free.

    Returns:
        Bytes.
    """
    if torch.device(device).type == "cuda":
        require_device(str(device))
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def capacity(device: torch.device) -> int:
    """Bytes of a card's memory, free or not."""
    return int(torch.cuda.get_device_properties(device).total_memory)


CONTEXT = 500 * 2**20
"""Bytes of a device that CUDA and its libraries take in a process, about, before any tensor."""


def libraries_bytes(device: str) -> int:
    """Memory of this process on cpu, cuda or cuda:N that holds libraries and no model."""
    return CONTEXT if device.startswith("cuda") else int(psutil.Process().memory_info().rss)


def memory_of(device: str) -> int:
    """Bytes that are free on cpu, cuda or cuda:N, or hold libraries; the host's without CUDA."""
    present = device if torch.cuda.is_available() else "cpu"
    return free_memory(present) + libraries_bytes(present)


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
def mapped_blocks(small: int | None = None) -> Generator[None]:
    """A block in which `MAPPED` bytes and more are given back as soon as they are freed.

    What is free before it and after it is given back too. Does nothing without glibc, or where the
    process is small as the block begins.

    Args:
        small: Resident bytes up to which it is; `SMALL` by default.

    Yields:
        Nothing.
    """
    library = ctypes.CDLL(None)
    if (
        not hasattr(library, "malloc_trim")
        or _KEPT.get()
        or psutil.Process().memory_info().rss <= (SMALL if small is None else small)
    ):
        yield
        return
    library.malloc_trim(0)
    library.mallopt(_M_MMAP_THRESHOLD, MAPPED)
    try:
        yield
    finally:
        library.mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.malloc_trim(0)  # blocks that found a hole of the heap were not mapped
