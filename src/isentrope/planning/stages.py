"""The stages of a verb, each with the terms of its largest memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from isentrope.planning.tracing import Trace


@dataclass(frozen=True)
class Term:
    """Something that takes memory.

    Attributes:
        name: What.
        size: Bytes.
        formula: Where the number comes from, in words.
    """

    name: str
    size: int
    formula: str


@dataclass(frozen=True)
class Work:
    """Arithmetic of a stage.

    Attributes:
        flops: Floating-point operations of matrix products.
        written: Bytes of all results.
        double: Whether products are in float64.
    """

    flops: float = 0.0
    written: float = 0.0
    double: bool = False

    @classmethod
    def of(cls, passes: list[tuple[Trace, float]], *, double: bool) -> Work:
        """The work of passes over micro-batches, each with how many of them."""
        flops = sum(times * (x.flops + x.head_flops) for x, times in passes)
        written = sum(times * (x.written + x.head_written) for x, times in passes)
        return cls(flops, written, double)

    def times(self, factor: float) -> Work:
        """So many times this work."""
        return replace(self, flops=factor * self.flops, written=factor * self.written)


@dataclass(frozen=True)
class Stage:
    """What is in memory at once in a part of a verb.

    Attributes:
        name: Of the stage.
        terms: All that is held, at the stage's own peak.
        work: Its arithmetic.
    """

    name: str
    terms: tuple[Term, ...]
    work: Work = Work()

    @property
    def peak(self) -> int:
        """Bytes."""
        return sum(term.size for term in self.terms)


def pass_terms(trace: Trace) -> tuple[Term, ...]:
    """The memory of a pass over a micro-batch."""
    return (
        Term("logits", trace.logits, "rows x vocabulary entries at a time, and softmax of them"),
        Term("activations", trace.others, "of a micro-batch, followed by shapes"),
        Term("kept by the allocator", trace.kept, "free blocks below 32 MiB, followed by sizes"),
    )
