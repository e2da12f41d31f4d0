"""What results.json of `influence` says of the past updates behind the momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from isentrope.results.result_coding import OPTIONAL, Number, Value


@dataclass(frozen=True, kw_only=True)
class PastPart:
    """A part of the momentum's δ, per unit η.

    Attributes:
        delta_h: Of entropy.
        delta_j: Of reward; None where that was not asked for.
    """

    delta_h: Value
    delta_j: Annotated[Value | None, OPTIONAL] = None


@dataclass(frozen=True, kw_only=True)
class PastStep(PastPart):
    """What one past update contributes.

    Attributes:
        step: The checkpoint that it was taken from.
        back: How many steps ago it was, 1 for the last.
        weight: β₁^back.
        sequences: Of its batch.
    """

    step: int
    back: int
    weight: Number
    sequences: int


@dataclass(frozen=True, kw_only=True)
class MomentumRecord:
    """The momentum part of δH₁ by past update; the parts sum to it.

    Attributes:
        steps: Past updates, the last one first.
        before: What was there before the earliest of them; None where its optimizer's state is not
            kept.
        not_attributed: What is left: batches that are not recorded, and rounding.
        missing: The steps whose batches are not recorded and are not in `before`.
        half_of_sum: The number of last updates whose sum reaches half of the momentum part, and the
            ends of its interval, the upper one None where no recorded update surely does; None
            where the number is not known.
    """

    steps: tuple[PastStep, ...]
    before: Annotated[PastPart | None, OPTIONAL] = None
    not_attributed: PastPart
    missing: tuple[int, ...] = ()
    half_of_sum: tuple[int, int, int | None] | None = None

    @property
    def half(self) -> str | None:
        """The number of last updates that make up half of the whole, as "3 [2, 5]"."""
        if self.half_of_sum is None:
            return None
        middle, low, high = self.half_of_sum
        return f"{middle} [{low}, {'∞)' if high is None else f'{high}]'}"
