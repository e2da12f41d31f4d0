"""A plan: the stages of a verb, what they hold, whether that fits, and if not what would.

What is held without any pass (weights, moments, the step, stored gradients) is exact arithmetic on
the shapes of a checkpoint: N parameters, d of them trainable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from isentrope.attribution.gradients.storage_plan import Storage, plan_storage
from isentrope.models.precision import Precision
from isentrope.planning.shapes import Shapes
from isentrope.system.errors import IsentropeError

_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

STEP_VECTORS = 5
"""v, P, and the components momentum, decay and gradient."""

UPDATE_VECTORS = 5
"""Twice two moments of Adam, and the gradient; an optimizer that keeps fewer takes less."""


class DoesNotFitError(IsentropeError, ValueError):
    """A verb that takes more memory than there is."""


def on_line(shares: Sequence[float], found: Sequence[float]) -> Callable[[float], float]:
    """The straight line through two dry runs, which never falls.

    Args:
        shares: Of the whole, the smaller first.
        found: What they took.

    Returns:
        What a share takes; 1 is the whole.
    """
    (less, more), (first, second) = shares, found
    slope = max(0.0, second - first) / (more - less) if more > less else 0.0
    return lambda share: max(0.0, second + slope * (share - more))


@dataclass(frozen=True)
class Term:
    """A part of what is held.

    Attributes:
        name: What it is.
        size: Bytes.
        formula: Where they come from.
    """

    name: str
    size: int
    formula: str


@dataclass(frozen=True)
class Rows:
    """Gradients that a verb stores.

    Attributes:
        groups: Those of error groups.
        sides: Rows of the left and right side of each block of a kernel; None: with itself.
    """

    groups: int = 0
    sides: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True)
class Stage:
    """One stage of a verb.

    Attributes:
        name: As the verb's own clock calls it.
        seconds: Of one process; None where nothing was run.
        peak: Bytes at once.
        fixed: Those of them that no smaller micro-batch would save.
        setting: What the others are in proportion to.
        value: Of that setting, as far as it acts.
    """

    name: str
    seconds: float | None
    peak: int
    fixed: int
    setting: str = "sampling.max_tokens"
    value: int = 1


@dataclass(frozen=True)
class Plan:
    """What a verb takes at a checkpoint.

    Attributes:
        verb: Its name.
        checkpoint: Name of the checkpoint.
        stages: In the order in which they run.
        held: What is held without any pass, which is in the stages too.
        libraries: Bytes of Python and its libraries, without any model.
        memory: Bytes that there are.
        not_run: Why no stage was run; None where they were.
    """

    verb: str
    checkpoint: str
    stages: tuple[Stage, ...]
    held: tuple[Term, ...]
    libraries: int
    memory: int
    not_run: str | None = None

    @property
    def largest(self) -> Stage:
        """The stage that takes most."""
        return max(self.stages, key=lambda stage: stage.peak)

    @property
    def peak(self) -> int:
        """Bytes at once, libraries included."""
        return self.largest.peak + self.libraries

    @property
    def fits(self) -> bool:
        """Whether that is at most the memory."""
        return self.peak <= self.memory

    @property
    def seconds(self) -> float | None:
        """Of all stages."""
        known = [stage.seconds for stage in self.stages if stage.seconds is not None]
        return sum(known) if known else None

    def less(self, spared: int) -> Plan:
        """The same where every stage holds so much less: what a spread base has elsewhere."""
        stages = [
            replace(stage, peak=stage.peak - spared, fixed=stage.fixed - spared)
            for stage in self.stages
        ]
        return replace(self, stages=tuple(stages))

    @property
    def cure(self) -> str:
        """The change that would fit, by the straight line of each stage."""
        room = self.memory - self.libraries
        wanted: dict[str, int] = {}
        for stage in self.stages:
            if stage.peak <= room:
                continue
            share = (room - stage.fixed) / max(1, stage.peak - stage.fixed)
            value = int(share * stage.value)
            if value < 1:
                return (
                    f"{gigabytes(stage.fixed)} are held in {stage.name} whatever is read at a "
                    "time: fisher_kernel.where=disk, fewer analysis.groups, "
                    "precision.runtime_dtype=float32 or a machine with more memory."
                )
            power = 1 << (value.bit_length() - 1)
            wanted[stage.setting] = min(power, wanted.get(stage.setting, power))
        return " ".join(f"--set {name}={value}" for name, value in wanted.items()) + " would fit."


def weights(shapes: Shapes, precision: Precision, spread_over: int = 1) -> list[Term]:
    """The weights in float32, and a copy at another precision for as long as it is used.

    Args:
        shapes: Of the checkpoint.
        precision: Of the measurement.
        spread_over: Processes over which the base is spread.

    Returns:
        The terms.
    """
    n = shapes.of_a_process(shapes.parameters, shapes.spread, spread_over)
    size = _element(precision)
    terms = [Term("weights", 4 * n, f"{n:,} parameters x 4 bytes (float32)")]
    if size != 4:
        name = f"weights in {precision.runtime_dtype}"
        terms.append(Term(name, size * n, f"{n:,} parameters x {size} bytes"))
    if spread_over > 1:
        layer = shapes.spread // shapes.layers
        terms.append(Term("a gathered layer", size * layer, f"{layer:,} parameters x {size} bytes"))
    return terms


def held(
    shapes: Shapes, precision: Precision, rows: Rows | None, storage: Storage, spread_over: int = 1
) -> list[Term]:
    """All that is held at once, where it is most.

    Args:
        shapes: Of the checkpoint.
        precision: Of the measurement.
        rows: Gradients that are stored; None where there is no step either.
        storage: How.
        spread_over: Processes over which the base is spread.

    Returns:
        The terms: of the update, or of what comes after it.
    """
    if rows is None:
        return weights(shapes, precision, spread_over)
    d = shapes.of_a_process(shapes.trainable, shapes.spread_trainable, spread_over)
    size = _element(precision)

    def vectors(name: str, count: int) -> Term:
        return Term(name, 8 * count * d, f"{count} x {d:,} trainable x 8 bytes (float64)")

    stored = 0 if storage.where == "disk" else rows.groups * max(4, size) * d
    after = [vectors("step", STEP_VECTORS)]
    after.append(Term("stored gradient groups", stored, f"{rows.groups} groups x {d:,} trainable"))
    blocks = [plan_storage(*sides, d, size, storage) for sides in rows.sides]
    kept = 0 if storage.where == "disk" else max((b.held_bytes for b in blocks), default=0)
    after.append(Term("stored gradients", kept, f"rows x {d:,} trainable ({storage.kept})"))
    update = [vectors("moments and gradient", UPDATE_VECTORS)]
    larger = max(update, after, key=lambda terms: sum(term.size for term in terms))
    every = [*weights(shapes, precision, spread_over), *larger]
    return [term for term in every if term.size]


def _element(precision: Precision) -> int:
    """Bytes of a number at a precision."""
    return {"float64": 8, "bfloat16": 2}.get(precision.runtime_dtype, 4)


def libraries_bytes() -> int:
    """Resident memory of this process, which has loaded the libraries and no model."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def memory_of(device: str, processes: int = 1) -> int:
    """Memory that is free now for each of the processes on this machine.

    Args:
        device: cpu, cuda or cuda:N; each process has a GPU of its own.
        processes: How many there are.

    Returns:
        Bytes.
    """
    import psutil
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available) // processes + libraries_bytes()


def bytes_of(text: str) -> int:
    """A size with its unit, in bytes.

    Args:
        text: Such as "16GB" or "24 GiB".

    Returns:
        Bytes.

    Raises:
        ValueError: If it is no such size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", text, re.IGNORECASE)
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"--memory {text!r} is not a size: write 16GB, 24GiB or 500MB.")
    return int(float(found[1]) * (_UNITS | _BINARY)[found[2].upper()])


def gigabytes(size: float) -> str:
    """A size in words."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
