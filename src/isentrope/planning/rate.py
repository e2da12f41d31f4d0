"""How fast a device is, by two short measurements: products of matrices, and writing results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from isentrope.planning.stages import Work

SECONDS = 0.3
"""Of each measurement."""

WIDTH = 768
"""Of the matrices."""


@dataclass(frozen=True)
class Rate:
    """What a device does in a second.

    Attributes:
        single: FLOPs of matrix products in float32.
        double: The same in float64.
        written: Bytes of results of elementwise operations.
    """

    single: float
    double: float
    written: float

    def seconds(self, work: Work) -> float:
        """Time of a stage: products and elementwise results one after the other."""
        return work.flops / (self.double if work.double else self.single) + work.written / (
            self.written
        )


def measured_rate(device: str = "cpu") -> Rate:
    """Measure a device, in about a second.

    Args:
        device: cpu, cuda or cuda:N.

    Returns:
        Its rates, as they are now: other work on the machine lowers them.
    """
    single, double = (_product(dtype, device) for dtype in (torch.float32, torch.float64))
    x = torch.zeros(2**21, dtype=torch.float64, device=device)
    written = _per_second(lambda: x.exp(), device) * 8 * len(x)
    return Rate(single, double, written)


def _product(dtype: torch.dtype, device: str) -> float:
    a = torch.ones(WIDTH, WIDTH, dtype=dtype, device=device)
    return _per_second(lambda: a @ a, device) * 2 * WIDTH**3


def _per_second(operation: Callable[[], object], device: str) -> float:
    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    operation()
    wait()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        operation()
        wait()
        count += 1
    return count / (time.perf_counter() - start)
