"""Which processes share a piece of work, how it is dealt to them, and sums of what each has done.

Every process makes the same calls, in the same order. A sum is the same bits on all of them.
"""

# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.system.processes import gather, rank, together, world_size

_T = TypeVar("_T")


@dataclass(frozen=True)
class Ranks:
    """Processes that share the work on a batch: each does its part, and all get the sum.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    def deal(self, sizes: Sequence[int]) -> list[list[int]]:
        """Deal pieces of work to the processes, the largest first, each to the least loaded.

        Args:
            sizes: Of the pieces, 0 or more each.

        Returns:
            For each process the indices of its pieces, largest first; the same on every process.
        """
        parts: list[list[int]] = [[] for _ in range(self.size)]
        loads = [0] * self.size
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            least = loads.index(min(loads))
            parts[least].append(index)
            loads[least] += sizes[index]
        return parts

    def owners(self, sizes: Sequence[int], unit_of: Tensor | None = None) -> Tensor:
        """Deal items to the processes by size.

        Args:
            sizes: Of the items, 0 or more each.
            unit_of: (n,) items of one unit go to one process; None: each is its own.

        Returns:
            (n,) int64, the process of each item.
        """
        unit = torch.arange(len(sizes)) if unit_of is None else unit_of.cpu()
        unit_sizes = [int(size) for size in unit.bincount(torch.tensor(sizes))]
        owner_of = torch.empty(len(unit_sizes), dtype=torch.long)
        for process, units in enumerate(self.deal(unit_sizes)):
            owner_of[units] = process
        return owner_of[unit]

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, the same bits on all of them.

        Args:
            tensors: As many, of the same shapes and types, on every process.
        """
        if self.size > 1:
            for tensor in tensors:
                _add_up(tensor)

    def join(self, tensors: Iterable[Tensor]) -> None:
        """Fill in what other processes have written into tensors of any type.

        Args:
            tensors: Zero wherever another process has written.
        """
        self.sum(tensor.view(torch.uint8) for tensor in tensors)  # of bytes of which one is zero


ALONE = Ranks()
"""One process, whatever others there are."""


def _add_up(tensor: Tensor) -> None:
    if dist.get_backend() != "nccl" or tensor.is_cuda:
        dist.all_reduce(tensor)
        return
    on_device = tensor.cuda()
    dist.all_reduce(on_device)
    tensor.copy_(on_device)


def sum_over_processes(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes of this run, the same bits on each.

    Args:
        tensors: As many, of the same shapes and types, on every process.
    """
    if world_size() > 1:
        for tensor in tensors:
            _add_up(tensor)


def from_first(work: Callable[[], _T]) -> _T:
    """What a function returns on the first process of this run, on all; it runs on no other.

    Args:
        work: Called by the first process; it must not wait for others.

    Returns:
        What it returned there; anything that can be pickled.

    Raises:
        Exception: On the first process, what `work` raised.
        OtherProcessError: On the others, with its words.
    """
    if world_size() == 1:
        return work()
    return cast(_T, gather(together(lambda: None if rank() else work()))[0])


def gather_lists(content: list[_T]) -> list[_T]:
    """The lists of all processes of this run, one after the other."""
    return [x for part in gather(content) for x in part]


class SharedWork:
    """Something whose work on a batch the processes of a run may share.

    Attributes:
        ranks: The processes that share the work on each batch; every one of them must then make
            the same calls. This process alone, until it is set.
    """

    ranks: Ranks = ALONE

    @property
    def alone(self) -> bool:
        """Whether no other process shares the work."""
        return self.ranks.size == 1

    def share_work(self) -> None:
        """Share the work on each batch with all processes of this run, from here on."""
        self.ranks = Ranks(rank(), world_size())

    def sum_over_processes(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes that share the work."""
        self.ranks.sum(tensors)

    def from_first(self, work: Callable[[], _T]) -> _T:
        """What a function returns on the first process that shares the work, on all of them."""
        return work() if self.ranks.size == 1 else from_first(work)

    def gather_lists(self, content: list[_T]) -> list[_T]:
        """The lists of all processes that share the work, one after the other."""
        return content if self.ranks.size == 1 else gather_lists(content)

    def rounds(self, items: Sequence[_T], at_once: int) -> Iterator[Sequence[_T]]:
        """The items of this process, so many at a time; all processes have equally many rounds.

        Args:
            items: At least one, in an order that all processes share.
            at_once: Items of a process in one round, at most.

        Yields:
            Those of a round; the last of all items, again, where there are no more.
        """
        size = min(at_once, -(-len(items) // self.ranks.size))
        for start in range(0, len(items), size * self.ranks.size):
            first = start + size * self.ranks.rank
            yield items[first : first + size] or items[-1:]
