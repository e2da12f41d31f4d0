"""What a verb holds without any pass: weights, moments, the step, stored gradients.

All of it is exact arithmetic on the shapes of a checkpoint: N parameters, d of them trainable.
"""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.attribution.gradients.storage_plan import Storage, plan_storage
from isentrope.models.precision import Precision
from isentrope.planning.shapes import Shapes

STEP_VECTORS = 5
"""v, P, and the components momentum, decay and gradient."""

UPDATE_VECTORS = 5
"""Twice two moments of Adam, and the gradient; an optimizer that keeps fewer takes less."""


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
