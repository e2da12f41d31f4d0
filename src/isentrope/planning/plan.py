"""A plan: what a verb draws, which passes it takes, what they hold, and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from isentrope.system.errors import IsentropeError


class DoesNotFitError(IsentropeError, ValueError):
    """A verb that takes more memory than there is."""


@dataclass(frozen=True)
class Batch:
    """Responses that a verb reads.

    Attributes:
        name: E, U, or F for fresh responses.
        prompts: Number of prompt draws, at most.
        responses: Number of responses, at most where they are drawn.
        tokens: Number of response tokens, at most.
        file: File that they are read from; None where they are drawn.
    """

    name: str
    prompts: int
    responses: int
    tokens: int
    file: str | None = None


@dataclass(frozen=True)
class PassesOver:
    """Passes over one batch, and what is held while they run.

    Attributes:
        name: What they compute.
        batch: Name of the batch.
        responses: Number of responses that each pass reads.
        stage: Name under which results.json has the seconds; several parts share one.
        forward: Number of passes for values, those before a backward pass included.
        backward: Number of backward passes.
        forward_mode: Number of derivatives of all tokens along one direction.
        second_order: Number of second derivatives of all tokens along one direction.
        at_once: Directions of a forward-mode pass at once.
        rates: Number of learning rates at which distributions are compared with those at θ.
        entropies: Whether entropies are differentiated, or scored with the variances of
            log-probabilities; log-probabilities alone hold less.
        memory: Bytes above what the verb always holds, by what they are.
        setting: Setting that activations and cache are in proportion to.
        value: Value of that setting, as far as it acts.
        unit: Its values are multiples of this.
    """

    name: str
    batch: str
    responses: int
    stage: str
    forward: int = 0
    backward: int = 0
    forward_mode: int = 0
    second_order: int = 0
    at_once: int = 1
    rates: int = 0
    entropies: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    setting: str = "sampling.max_tokens"
    value: int = 1
    unit: int = 1

    @property
    def passes(self) -> tuple[int, int, int, int]:
        """Forward, backward, forward-mode and second-order passes."""
        return self.forward, self.backward, self.forward_mode, self.second_order

    @property
    def bytes(self) -> int:
        """Bytes above what the verb always holds."""
        return sum(self.memory.values())

    def times(self, factor: float) -> PassesOver:
        """The same passes where every byte takes `factor` bytes of the process."""
        memory = {name: int(factor * size) for name, size in self.memory.items()}
        return replace(self, memory=memory)

    @property
    def fixed(self) -> int:
        """Bytes of these that no smaller `setting` would save."""
        return sum(size for name, size in self.memory.items() if name not in PROPORTIONAL)


ACTIVATIONS = "activations"
CACHE = "KV cache"
MERGED = "merged weights"
PROPORTIONAL = (ACTIVATIONS, CACHE)
"""Terms of memory in proportion to the setting of a part."""


@dataclass(frozen=True)
class Plan:
    """What a verb takes at a checkpoint.

    Attributes:
        verb: Name of the verb.
        checkpoint: Name of the checkpoint.
        held: Bytes that are held all the time, by what they are.
        libraries: Bytes of Python and its libraries, or of CUDA, without any model.
        memory: Bytes that there are.
        batches: Responses that are drawn or read.
        parts: Passes in the order in which they run.
        compared: Bytes above what is held while derivatives are compared with differences, before
            the passes, by what they are.
        seconds: Seconds of each stage, scaled from an earlier run; empty where none was measured.
        measured_by: The earlier run, or why there is none.
        assumptions: Sentences on what is assumed, and on what is not counted.
        otherwise: Changes to make where no smaller micro-batch would fit.
    """

    verb: str
    checkpoint: str
    held: dict[str, int]
    libraries: int
    memory: int
    batches: tuple[Batch, ...] = ()
    parts: tuple[PassesOver, ...] = ()
    compared: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    measured_by: str = ""
    assumptions: tuple[str, ...] = ()
    otherwise: str = (
        "fisher_kernel.where=disk, fewer analysis.groups, precision.runtime_dtype=float32"
    )

    @property
    def largest(self) -> PassesOver | None:
        """The part that holds most; None where no part is counted."""
        return max(self.parts, key=lambda part: part.bytes, default=None)

    @property
    def peak(self) -> int:
        """Bytes at once, libraries included."""
        passes = self.largest.bytes if self.largest else 0
        above = max(passes, sum(self.compared.values()))
        return sum(self.held.values()) + above + self.libraries

    @property
    def fits(self) -> bool:
        """Whether that is at most the memory."""
        return self.peak <= self.memory

    @property
    def cure(self) -> str:
        """The change that would fit: activations and cache are in proportion to their setting."""
        room = self.memory - self.libraries - sum(self.held.values())
        sizes: dict[str, int] = {}
        for part in (part for part in self.parts if part.bytes > room):
            share = (room - part.fixed) / max(1, part.bytes - part.fixed)
            largest = max(0, int(share * part.value))
            size = 2 ** (largest.bit_length() - 1)
            if "micro_batch" in part.setting:  # a step is a whole number of them
                multiples = range(largest - largest % part.unit, 0, -part.unit)
                size = next((k for k in multiples if part.value % k == 0), 0)
            sizes[part.setting] = min(size, sizes.get(part.setting, size))
        if sizes and min(sizes.values()) >= 1:
            changes = " ".join(f"--set {name}={value}" for name, value in sizes.items())
            return f"{changes} would fit."
        return (
            f"Most of it is held whatever is read at a time: {self.otherwise} or a machine with "
            "more memory."
        )
