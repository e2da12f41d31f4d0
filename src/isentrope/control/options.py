"""The options of an isentropic step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from isentrope.control.correction import Limits
from isentrope.control.gradients import GROUPS


@dataclass(frozen=True)
class IsentropicOptions:
    """Options of an isentropic step.

    Attributes:
        strength: Share of the predicted change of entropy that is cancelled.
        size: Number of sequences per draw of the control's own E, both halves together.
        every: Number of steps per draw of E; the steps between use the last draw's gradients.
        start_size: Number of sequences on which the entropy before the first step is measured,
            once, where the target starts at that entropy.
        average: Number of draws over which the entropy gradient of u is averaged; 1 for the last.
            The gain of u and <g,v> always come from the last draw alone.
        largest: Bound on ‖λu‖ as a multiple of ‖v‖, in the norm √<x, P⁻¹x>.
        range: Largest change of entropy by the correction, as a share of the entropy.
        reward_neutral: Remove the part of u that changes the mean reward to first order.
        reward_average: Number of steps over which the reward gradient is averaged for that.
    """

    on_policy: ClassVar[bool] = True
    targetable: ClassVar[bool] = True

    strength: float = 1.0
    size: int = 96
    every: int = 2
    start_size: int = 1024
    average: int = 8
    largest: float = 1.0
    range: float = 0.1
    reward_neutral: bool = False
    reward_average: int = 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            number = kind is float and type(value) is int
            if type(value) is not kind and not number:
                raise ValueError(
                    f"{field.name} of an isentropic step is {kind.__name__}, got {value!r}."
                )
        if self.size < 4 * GROUPS:
            raise ValueError(
                f"An isentropic step needs size >= {4 * GROUPS}, two sequences for each of "
                f"{GROUPS} groups of each half, got {self.size}."
            )
        if self.start_size < 2 * GROUPS:
            raise ValueError(f"start_size of an isentropic step is {2 * GROUPS} or more.")
        if min(self.every, self.average, self.reward_average) < 1:
            raise ValueError(
                "every, average and reward_average of an isentropic step are 1 or more."
            )
        Limits(self.strength, self.largest, self.range)

    @property
    def limits(self) -> Limits:
        """Bounds of a correction."""
        return Limits(self.strength, self.largest, self.range)
