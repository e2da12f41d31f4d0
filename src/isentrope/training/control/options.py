"""The options of an isentropic step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from isentrope.training.control.correction import Limits
from isentrope.training.control.gradients import GROUPS


@dataclass(frozen=True)
class IsentropicOptions:
    """How an isentropic step is made.

    Attributes:
        strength: Share of the predicted change of entropy that is cancelled.
        size: Sequences of the control's own E per draw, both halves together.
        every: Steps per draw of E; the steps between use the last draw's gradients.
        start_size: Sequences on which the entropy before the first step is measured, once, where
            the target begins there.
        average: Draws over which the entropy gradient that makes u is averaged; 1: the last alone.
            The gain of u and <g,v> always come from the last draw alone.
        largest: ‖λu‖ at most this multiple of ‖v‖, in the norm √<x, P⁻¹x>.
        range: Largest change of entropy by the correction, as a share of the entropy.
        reward_neutral: Take the part out of u that changes the mean reward to first order.
        reward_average: Steps over which the gradient of reward is averaged for that.
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
            given, kind = getattr(self, field.name), type(field.default)
            number = kind is float and type(given) is int
            if type(given) is not kind and not number:
                raise ValueError(
                    f"{field.name} of an isentropic step is {kind.__name__}, got {given!r}."
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
        """How far a correction may go."""
        return Limits(self.strength, self.largest, self.range)
