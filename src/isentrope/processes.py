"""The processes of a run under torchrun: rank, world size, and exchange of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Number of this process; 0 where there is only one."""
    return dist.get_rank() if _joined() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if _joined() else 1


def leave() -> None:
    """Close the group of processes: a thread of it that is alive at exit aborts the process."""
    if _joined():
        dist.destroy_process_group()


def gather(content: T) -> list[T]:
    """Gather one object from every process; the list is the same on each.

    Args:
        content: Object of this process; anything that can be pickled, tensors on the CPU.

    Returns:
        One entry per process, in the order of ranks.
    """
    if world_size() == 1:
        return [content]
    everyone: list[T] = [content] * world_size()
    dist.all_gather_object(everyone, content)
    return everyone


def together(work: Callable[[], T]) -> T:
    """Run a function on each process; if it fails on one of them, it fails on all.

    So no process waits for one that has stopped.

    Args:
        work: Called once; it must not wait for other processes.

    Returns:
        What `work` returned on this process.

    Raises:
        Exception: What `work` raised here.
        RuntimeError: If it failed on another process only.
    """
    try:
        result, failure = work(), None
    except Exception as error:
        result, failure = None, error
    failures = gather(None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for number, sentence in enumerate(failures):
        if sentence is not None:
            raise RuntimeError(f"Process {number} failed: {sentence}")
    return cast(T, result)


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()
