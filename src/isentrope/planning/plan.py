"""A plan: the stages of a verb at a checkpoint, whether they fit, and if not what would."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from isentrope.models.precision import Precision
from isentrope.planning.measuring import Measuring
from isentrope.planning.passes import Passes
from isentrope.planning.rate import Rate
from isentrope.planning.shapes import Shapes
from isentrope.planning.sizes import Sizes
from isentrope.planning.stages import Stage
from isentrope.system.errors import IsentropeError

_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class DoesNotFitError(IsentropeError, ValueError):
    """A verb that takes more memory than there is."""


@dataclass(frozen=True)
class Plan:
    """What a verb takes at a checkpoint.

    Attributes:
        verb: Its name.
        checkpoint: Name of the checkpoint.
        stages: In the order in which they run.
        libraries: Bytes of Python and its libraries, without any model.
        memory: Bytes that there are.
        rate: Of the device; None where it was not measured.
        cure: The smallest change that would fit, as a sentence; None where it fits.
    """

    verb: str
    checkpoint: str
    stages: tuple[Stage, ...]
    libraries: int
    memory: int
    rate: Rate | None = None
    cure: str | None = None

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
        """Time of all stages, roughly: to a factor of two or three."""
        if self.rate is None:
            return None
        return sum(self.rate.seconds(stage.work) for stage in self.stages)


def plan_measuring(
    verb: str,
    name: str,
    shapes: Shapes,
    sizes: Sizes,
    memory: int,
    rate: Rate | None = None,
) -> Plan:
    """Plan a measuring verb, every pass followed by shapes.

    Args:
        verb: One of measure, influence, kernel, noise and audit.
        name: Of the checkpoint.
        shapes: Of the checkpoint.
        sizes: What is asked.
        memory: Bytes that there are.
        rate: Of the device, for the time.

    Returns:
        The plan, with a cure where it does not fit.
    """
    known: dict[tuple[Precision, int], Passes] = {}

    def stages(of: Sizes) -> tuple[Stage, ...]:
        def passes(precision: Precision) -> Passes:
            if (precision, sizes.max_tokens) not in known:
                known[precision, sizes.max_tokens] = Passes(
                    shapes, precision, sizes.max_tokens, sizes.vocab_chunk
                )
            whole = known[precision, sizes.max_tokens]
            if of.max_tokens == sizes.max_tokens:
                return whole
            return whole.with_fewer_tokens(of.max_tokens)

        return tuple(Measuring(shapes, of, passes).stages(verb))

    plan = Plan(verb, name, stages(sizes), libraries_bytes(), memory, rate)
    if plan.fits:
        return plan
    return replace(plan, cure=_cure(plan, sizes, shapes.spread, stages))


def least(verb: str, name: str, shapes: Shapes, sizes: Sizes, memory: int) -> Plan:
    """What a verb takes without any pass: weights, moments and stored gradients.

    Args:
        verb: One of measure, influence, kernel, noise and audit.
        name: Of the checkpoint.
        shapes: Of the checkpoint.
        sizes: What is asked.
        memory: Bytes that there are.

    Returns:
        A plan that the verb is sure to exceed.
    """
    found = tuple(Measuring(shapes, sizes).stages(verb))
    return Plan(verb, name, found, libraries_bytes(), memory)


def _changes(sizes: Sizes, spread: int) -> list[tuple[str, Sizes]]:
    """Changes of one setting, those that cost least first; `spread` parameters can be shared."""
    longest = max(sizes.E.length, sizes.U.length)
    tokens = sizes.max_tokens
    found: list[tuple[str, Sizes]] = []
    while tokens // 2 >= longest:
        tokens //= 2
        found.append((f"sampling.max_tokens={tokens}", replace(sizes, max_tokens=tokens)))
    batch = sizes.sampled_at_once
    while batch > 1:
        batch //= 2
        found.append((f"sampling.batch_size={batch}", replace(sizes, sampled_at_once=batch)))
    disk = replace(sizes.storage, where="disk")
    found.append(("fisher_kernel.where=disk", replace(sizes, storage=disk)))
    for groups in (4, 2):
        if sizes.groups is None or groups < sizes.groups:
            found.append((f"analysis.groups={groups}", replace(sizes, groups=groups)))
    if spread and sizes.processes > 1 and not sizes.sharded:
        found.append(("checkpoint.shard_base=true", replace(sizes, sharded=True)))
    if sizes.order == 2:
        found.append(("estimator.order=1", replace(sizes, order=1)))
    if sizes.measuring.runtime_dtype == "float64":
        short = Precision("float32")
        same = replace(sizes, measuring=short, updating=short, sampling=short)
        found.append(("precision.runtime_dtype=float32", same))
    return found


def _cure(
    plan: Plan, sizes: Sizes, spread: int, stages: Callable[[Sizes], tuple[Stage, ...]]
) -> str:
    """The first change that fits, or several at once."""

    def fits(of: Sizes) -> bool:
        return replace(plan, stages=stages(of)).fits

    for words, changed in _changes(sizes, spread):
        if fits(changed):
            return f"--set {words} would fit."
    taken: dict[str, str] = {}
    now = sizes
    for _ in range(8):
        better = [
            (replace(plan, stages=stages(changed)).peak, words, changed)
            for words, changed in _changes(now, spread)
        ]
        size, words, changed = min(better, key=lambda x: x[0])
        if size >= replace(plan, stages=stages(now)).peak:
            break
        taken[words.partition("=")[0]] = words
        now = changed
        if fits(now):
            return " ".join(f"--set {words}" for words in taken.values()) + " would fit."
    left = replace(plan, stages=stages(now))
    return (
        f"No change of these settings fits: with {', '.join(taken.values()) or 'none'} it takes "
        f"{gigabytes(left.peak)}, of which the {left.largest.terms[0].name} are "
        f"{gigabytes(left.largest.terms[0].size)}. Take a machine with more memory."
    )


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
