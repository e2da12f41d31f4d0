"""The options of an isentropic step."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from isentrope.control.base import Count, Positive, options
from isentrope.control.gradients import GROUPS


@options
class Limits:
    """Bounds of a correction.

    Attributes:
        strength: Share of the predicted change of entropy that is cancelled, s.
        largest: Bound on ‖λu‖ as a multiple of ‖v‖, in the norm √<x, P⁻¹x>.
        range: Bound on |ηλc|, the change of entropy by the correction, as a share of the entropy.
    """

    strength: Positive = 1.0
    largest: Positive = 1.0
    range: Positive = 0.1


@options
class IsentropicOptions(Limits):
    """Options of an isentropic step.

    Attributes:
        size: Number of sequences per draw of the control's own E, both halves together.
        every: Number of steps per draw of E; the steps between use the last draw's gradients.
        start_size: Number of sequences on which the entropy before the first step is measured,
            once, where the target starts at that entropy.
        average: Number of draws over which the entropy gradient of u is averaged; 1 for the last.
            The gain of u and <g,v> always come from the last draw alone.
        reward_neutral: Remove the part of u that changes the mean reward to first order.
        reward_average: Number of steps over which the reward gradient is averaged for that.
    """

    targetable: ClassVar[bool] = True

    size: Annotated[int, Field(ge=4 * GROUPS)] = 96
    every: Count = 2
    start_size: Annotated[int, Field(ge=2 * GROUPS)] = 1024
    average: Count = 8
    reward_neutral: bool = False
    reward_average: Count = 20
