"""What is held across passes: weights, the optimizer's moments, the step, stored gradients.

All of it is exact arithmetic on the shapes of a checkpoint: N parameters, d of them trainable.
"""

from __future__ import annotations

from dataclasses import dataclass

from isentrope.attribution.gradients.storage_plan import Storage, plan_storage
from isentrope.attribution.influence.projection import DIRECTIONS_AT_ONCE
from isentrope.attribution.influence.quantities import (
    MAX_GROUP_BYTES,
    SEQUENCE_GROUPS,
    TOKEN_GROUPS,
)
from isentrope.models.precision import Precision
from isentrope.planning.shapes import Shapes
from isentrope.planning.stages import Term

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}

STEP_VECTORS = 5
"""v, P, and the components momentum, decay and gradient."""

MOMENTS = 2
"""Of Adam; an optimizer that keeps fewer takes less."""


def element(precision: Precision) -> int:
    """Bytes of a number at a precision."""
    return BYTES.get(precision.runtime_dtype, 4)


@dataclass(frozen=True)
class Holdings:
    """The terms of a checkpoint.

    Attributes:
        shapes: Of the checkpoint.
        spread_over: Processes over which its base is spread.
    """

    shapes: Shapes
    spread_over: int = 1

    @property
    def trainable(self) -> int:
        """d, or what a process holds of it where trained layers are spread."""
        d, spread = self.shapes.trainable, self.shapes.spread_trainable
        return d - spread + -(-spread // self.spread_over)

    def weights(self, precision: Precision) -> tuple[Term, ...]:
        """The weights in float32, and a copy at another precision for as long as it is used."""
        size, spread, layers = element(precision), self.shapes.spread, self.shapes.layers
        n = self.shapes.parameters - spread + -(-spread // self.spread_over)
        terms = [Term("weights", 4 * n, f"{n:,} parameters x 4 bytes (float32)")]
        if size != 4:
            name = f"weights in {precision.runtime_dtype}"
            terms.append(Term(name, size * n, f"{n:,} parameters x {size} bytes"))
        if self.spread_over > 1:
            layer = spread // layers
            words = f"{layer:,} parameters x {size} bytes"
            terms.append(Term("a gathered layer", size * layer, words))
        return tuple(terms)

    def exchanged(self, precision: Precision, *, backward: bool) -> tuple[Term, ...]:
        """Buffers of a pass: a layer as it arrives, and of one tensor v or gradients in float64."""
        if self.spread_over == 1:
            return ()
        layer, size = self.shapes.spread // self.shapes.layers, element(precision)
        words = f"{layer:,} parameters x {size} bytes, before they are tensors"
        buffer = Term("a layer as exchanged", size * layer, words)
        whole = self.shapes.largest_spread
        part = -(-whole // self.spread_over)
        times = 2 if backward else 1  # a sum takes a copy cut into parts, and gives a part
        words = f"({times} x {whole:,} + {part:,}) x 8 bytes (float64), of the largest tensor"
        name = "gradients to be summed" if backward else "v gathered"
        return buffer, Term(name, 8 * (times * whole + part), words)

    def files(self) -> Term:
        """The weights' files, mapped while they are read."""
        return Term("weights' files", self.shapes.file_bytes, "mapped while they are read")

    def optimizer_file(self) -> Term:
        """The optimizer's file, which every process reads whole."""
        return Term("optimizer's file", self.shapes.optimizer_bytes, "whole, while it is read")

    def moments(self, times: int = 1) -> Term:
        """The optimizer's moments, in float64."""
        d = self.trainable
        size = times * MOMENTS * 8 * d
        return Term(
            "optimizer moments", size, f"{times} x {MOMENTS} x {d:,} trainable x 8 bytes (float64)"
        )

    def vectors(self, name: str, count: int) -> Term:
        """Vectors over θ in float64."""
        d = self.trainable
        return Term(name, count * 8 * d, f"{count} x {d:,} trainable x 8 bytes (float64)")

    def step(self) -> Term:
        """The optimizer's step."""
        return self.vectors("step", STEP_VECTORS)

    def group_count(self, groups: int | None, prompts: int, tokens: bool) -> int:
        """Error groups of influence, as `default_groups` chooses them."""
        if groups is not None:
            return groups
        most = TOKEN_GROUPS
        if not tokens:
            fit = MAX_GROUP_BYTES // (8 * self.shapes.trainable)
            most = max(most, min(SEQUENCE_GROUPS, fit))
        return min(most, prompts)

    def groups(self, count: int, precision: Precision, storage: Storage) -> Term:
        """The gradients of error groups; none of them in memory where they are on disk."""
        d, size = self.trainable, max(4, element(precision))
        if storage.where == "disk":
            return Term("stored gradient groups", 0, f"{count * size * d:,} bytes on disk")
        return Term(
            "stored gradient groups",
            count * size * d,
            f"{count} groups x {d:,} trainable x {size} bytes",
        )

    def at_once(self, directions: int) -> int:
        """Directions of a forward-mode pass: one where θ is spread."""
        theta_is_spread = self.spread_over > 1 and self.shapes.spread_trainable
        return min(directions, 1 if theta_is_spread else DIRECTIONS_AT_ONCE)

    def directions(self, groups: int, precision: Precision) -> Term:
        """P g of the groups that one forward-mode pass takes, with the part they come from."""
        d, size, count = self.trainable, element(precision), self.at_once(groups)
        formula = f"({count} x {size} + 8) bytes x {d:,} trainable"
        return Term("directions", (count * size + 8) * d, formula)

    def kernel_rows(
        self, left: int, right: int | None, precision: Precision, storage: Storage
    ) -> Term:
        """The gradients of the side of a kernel that is held."""
        size = element(precision)
        plan = plan_storage(left, right, self.trainable, size, storage)
        where = {"device": "", "cpu": " on the CPU", "disk": " on disk"}[storage.where]
        rows = max(end - start for start, end in plan.tiles)
        words = f"{rows} rows x {plan.row_bytes:,} bytes ({storage.kept}){where}"
        return Term("stored gradients", 0 if storage.where == "disk" else plan.held_bytes, words)
