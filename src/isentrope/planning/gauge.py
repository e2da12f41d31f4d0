"""Bytes of the tensors that are alive while a computation runs, and seconds of its stages."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isentrope.system.progress import Clock


class Alive(TorchDispatchMode):
    """Counts the storages that operations make and free on one kind of device.

    What a kernel allocates inside is not seen, nor free blocks that an allocator keeps.

    Attributes:
        now: Bytes alive.
        peak: The most at once since it was last set.
    """

    def __init__(self, device: str, known: Iterable[Tensor]) -> None:
        """Begin with tensors that are there.

        Args:
            device: "cpu" or "cuda".
            known: They count as long as they live.
        """
        super().__init__()
        self._device, self._sizes = device, dict[int, int]()
        self._freed = dict[int, weakref.ref[Any]]()
        self.now = self.peak = 0
        for x in known:
            self._add(x)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and hiding every call from a compiler takes as long as it."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs) if kwargs else func(*args)
        if isinstance(out, Tensor):
            self._add(out)
        elif isinstance(out, tuple | list):
            for x in tree_leaves(out):
                if isinstance(x, Tensor):
                    self._add(x)
        return out

    def _add(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key in self._sizes or x.device.type != self._device:
            return
        self._sizes[key] = storage.nbytes()
        self.now += self._sizes[key]
        self.peak = max(self.peak, self.now)
        self._freed[key] = weakref.ref(storage, partial(self._remove, key))

    def _remove(self, key: int, _: Any) -> None:
        del self._freed[key]
        self.now -= self._sizes.pop(key)


class Meter(Clock):
    """A clock that reads the gauge in each stage too.

    Attributes:
        peaks: Bytes at once, by stage.
    """

    def __init__(self, alive: Alive) -> None:
        """Begin at 0 seconds."""
        super().__init__()
        self.peaks: dict[str, int] = {}
        self._alive = alive

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block, and note the most bytes in it."""
        before, self._alive.peak = self._alive.peak, self._alive.now
        try:
            with super().stage(name):
                yield
        finally:
            self.peaks[name] = max(self.peaks.get(name, 0), self._alive.peak)
            self._alive.peak = max(before, self._alive.peak)  # of a stage around this one
