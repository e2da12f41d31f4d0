"""The processes of a run under torchrun: rank, world size, exchange of objects.

Where torch.distributed was not imported no group was joined, so nothing here imports it to know.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from isentrope.system.log import log

_T = TypeVar("_T")


class OtherProcessError(RuntimeError):
    """This process stops because another one has failed, which says why."""


def _joined() -> bool:
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def join_processes() -> None:
    """Under torchrun, join the group, by the backend of the device; else nothing.

    Raises:
        RuntimeError: If the others do not come.
    """
    if "WORLD_SIZE" not in os.environ or _joined():
        return
    import torch
    import torch.distributed as dist
    from accelerate import PartialState

    try:
        if torch.cuda.is_available():
            PartialState(backend="cpu:gloo,cuda:nccl")  # a base may stay on the CPU
        else:
            PartialState(cpu=True, backend="gloo")
    except dist.DistError as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RuntimeError(
            f"Process {os.environ.get('RANK')} of {os.environ['WORLD_SIZE']} did not find the "
            f"others at {address}: start all of them by torchrun, with the same --rdzv-endpoint "
            f"and --nnodes on every machine, and see to it that they reach that address ({error})."
        ) from error


def speaks() -> bool:
    """Whether this process shows logs and progress: of those of torchrun the first, joined or not.

    Returns:
        True where there is one process.
    """
    return os.environ.get("RANK", "0") == "0"


def rank() -> int:
    """Number of this process; 0 where there is only one."""
    return sys.modules["torch.distributed"].get_rank() if _joined() else 0


def world_size() -> int:
    """Number of processes."""
    return sys.modules["torch.distributed"].get_world_size() if _joined() else 1


def one_process(key: str) -> str:
    """The refusal of a base that is to be spread where there is one process.

    Args:
        key: The setting.

    Returns:
        A sentence.
    """
    return (
        f"{key} spreads the base over several processes, and there is one: start the command by "
        "torchrun --nproc_per_node N."
    )


def on_one_gpu(args: Any) -> Any:
    """Arguments of a trainer that takes one GPU per process, as TRL does, however many it sees.

    Args:
        args: A TrainingArguments.

    Returns:
        The same object.
    """
    if args.n_gpu > 1:
        log.warning("This process trains on one of %d GPUs: torchrun uses them all.", args.n_gpu)
        args._n_gpu = 1
    return args


def lost_another(error: BaseException) -> bool:
    """Whether an error says that another process of this run has ended.

    Args:
        error: What was raised.

    Returns:
        True for a lost connection within the group.
    """
    if world_size() == 1:
        return False
    from torch.distributed import DistError

    lost = isinstance(error, RuntimeError) and "gloo" in str(error)
    return lost or isinstance(error, DistError)


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold, and of the errors that led to it.

    Args:
        error: It may still be raised; its sentence stays.
    """
    visited: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        traceback.clear_frames(current.__traceback__)
        pending += [current.__cause__, current.__context__]


def leave() -> None:
    """Close the group of processes: a thread of it that is alive at exit aborts the process.

    The threads end with the last object that refers to the group, such as a model that is spread.
    """
    if _joined():
        from torch.distributed import destroy_process_group

        destroy_process_group()
        gc.collect()


def gather(content: _T) -> list[_T]:
    """Gather one object from every process; the list is the same on each.

    Args:
        content: Object of this process; anything that can be pickled, tensors on the CPU.

    Returns:
        One entry per process, in the order of ranks.
    """
    if world_size() == 1:
        return [content]
    from torch.distributed import all_gather_object

    everyone: list[_T] = [content] * world_size()
    all_gather_object(everyone, content)
    return everyone


def together(work: Callable[[], _T]) -> _T:
    """Run a function on each process; if it fails on one of them, it fails on all.

    So no process waits for one that has stopped.

    Args:
        work: Called once; it must not wait for other processes.

    Returns:
        What `work` returned on this process.

    Raises:
        Exception: What `work` raised here.
        OtherProcessError: If it failed on another process only.
    """
    try:
        result = work()
    except Exception as error:  # raised again: the others must not wait, whatever failed
        gather(f"{type(error).__name__}: {error}")
        raise
    for number, sentence in enumerate(gather("")):
        if sentence:
            raise OtherProcessError(f"Process {number} failed: {sentence}")
    return result


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        from torch.distributed import barrier as wait_for_all

        wait_for_all()
