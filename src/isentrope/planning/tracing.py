"""A computation followed by its shapes alone: bytes alive at once, FLOPs, bytes written.

Operations run on fake tensors, which have shape, type and device and no numbers. Every storage
that an operation makes is counted from its first use until nothing refers to it. So the peak is
that of the library's own code, forward mode and backward passes included. Free blocks that stay
resident are followed too (`free_blocks`). What kernels allocate inside is not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from isentrope.planning.free_blocks import Heap
from isentrope.system.heap import LARGEST_KEPT, told_instead

_READ_A_NUMBER = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class Trace:
    """What a computation takes beyond the tensors that were there before it.

    Attributes:
        logits: Bytes of arrays over vocabulary entries, at the peak.
        others: Bytes of all other arrays, at the peak.
        flops: Floating-point operations of matrix products, but of those with the vocabulary.
        head_flops: Those with the vocabulary.
        written: Bytes of all results, but of arrays over vocabulary entries.
        head_written: Bytes of those.
        kept: Bytes that free blocks add to the peak.
        more_layers_held: Bytes of `others` that layers beyond the first add.
    """

    logits: int
    others: int
    flops: float
    head_flops: float
    written: float
    head_written: float
    kept: int = 0
    more_layers_held: int = 0

    @property
    def peak(self) -> int:
        """Bytes resident at once."""
        return self.logits + self.others + self.kept

    def more_layers(self, two: Trace, layers: int) -> Trace:
        """This trace of a model of one layer, and one of two, as a trace of a deeper one.

        Args:
            two: The same computation through two layers.
            layers: Number of layers.

        Returns:
            What grows with layers grows in proportion. The array over the vocabulary does not, nor
            do free blocks, which the next layer takes.
        """
        more = layers - 1

        def line(a: float, b: float) -> float:
            return a + more * max(b - a, 0)

        others = int(line(self.others, two.others + two.logits - self.logits))
        return Trace(
            logits=two.logits if layers > 1 else self.logits,
            others=others,
            flops=line(self.flops, two.flops),
            head_flops=self.head_flops,
            written=line(self.written, two.written),
            head_written=self.head_written,
            kept=max(self.kept, two.kept) if layers > 1 else self.kept,
            more_layers_held=others - self.others,
        )

    def share(self, share: float) -> Trace:
        """The same for a share of the sequences; logits are held for a fixed number of tokens."""
        return Trace(
            self.logits,
            int(share * self.others),
            share * self.flops,
            share * self.head_flops,
            share * self.written,
            share * self.head_written,
            int(share * self.kept),
            int(share * self.more_layers_held),
        )

    def times_head(self, factor: float) -> Trace:
        """The same with so many times the work on the vocabulary, chunk by chunk."""
        return Trace(
            self.logits,
            self.others,
            self.flops,
            factor * self.head_flops,
            self.written,
            factor * self.head_written,
            self.kept,
            self.more_layers_held,
        )


class _Following(TorchDispatchMode):
    """Counts storages, FLOPs and bytes of every operation below it."""

    def __init__(self, columns: Mapping[int, int], known: Iterable[Tensor], heap: Heap) -> None:
        super().__init__()
        self._columns, self._heap = columns, heap
        self._sizes: dict[int, tuple[int, bool]] = {}
        self._known = {x.untyped_storage()._cdata for x in known}
        self._now = [0, 0]  # others, logits
        self.peak, self.resident = (0, 0), 0
        self.flops, self.written = [0.0, 0.0], [0.0, 0.0]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _READ_A_NUMBER:  # of a check: all is well
            return True if args[0].dtype == torch.bool else 1
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tensors = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            of_head = any(self._wide(x) for x in (*inputs, *tensors))
            self.flops[of_head] += cast(Any, count)(*args, **kwargs, out_val=out)
        for x in tensors:
            self._add(x)
        return out

    def _wide(self, x: Tensor) -> bool:
        return any(size in self._columns for size in x.shape)

    def _add(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key in self._sizes or key in self._known:
            return
        size, wide = storage.nbytes(), self._wide(x)
        real = {self._columns[k] / k for k in x.shape if k in self._columns}
        self._heap.take(key, int(size * max(real, default=1)))
        self._sizes[key] = size, wide
        self._now[wide] += size
        self.written[wide] += size
        weakref.finalize(storage, self._remove, key)
        alive = sum(self._now)
        self.resident = max(self.resident, alive + self._heap.free)
        if alive > sum(self.peak):
            self.peak = self._now[0], self._now[1]

    def _remove(self, key: int) -> None:
        size, wide = self._sizes.pop(key)
        self._now[wide] -= size
        self._heap.drop(key)


def trace(
    computation: Callable[[], object],
    columns: Mapping[int, int],
    known: Iterable[Tensor],
    limit: int = LARGEST_KEPT,
) -> Trace:
    """Follow a computation.

    Args:
        computation: Runs on fake tensors.
        columns: Sizes of an axis over vocabulary entries, each with the one that it stands for.
        known: Tensors that were there before, the model's: they are not counted.
        limit: Bytes from which on a block has pages of its own.

    Returns:
        What it takes.
    """
    heap = Heap(limit)
    following = _Following(columns, known, heap)
    with told_instead(heap.give_back), following:
        result = computation()
    del result
    others, logits = following.peak
    kept = following.resident - others - logits
    (flops, head_flops), (written, head_written) = following.flops, following.written
    return Trace(logits, others, flops, head_flops, written, head_written, kept)
