"""Feedback: how much a control is to change entropy in the next step.

    e_t = h*_t − ĥ_t,     output_t = clip(k_p e_t + k_i Σ_s e_s, ± limit · h*_t)

h* is the target and ĥ the measured entropy, nats per token or per response, as the control has
them; the output is the change of h that is requested of the next step. Anti-windup: the integral
does not change while the output is at its limit and the error would push it further, or where a
control did not apply the request (`forget`). `share` is the output divided by its limit, in
[−1, 1]; a token control multiplies its strength by it.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from isentrope.system.number_types import OPTIONS, Count, NotNegative, Positive
from isentrope.system.saved_fields import SavedFields

TargetKind = Literal["none", "hold", "value", "linear", "cosine"]


class _Section(BaseModel):
    model_config = OPTIONS | ConfigDict(frozen=True, use_attribute_docstrings=True)


class Target(_Section):
    """The entropy that is wanted at each step: nats per token, of a budget also per response."""

    kind: TargetKind = "none"
    """none, hold (the entropy before the first step), value, linear, or cosine."""
    value: Positive | None = None
    """Of value; where linear and cosine begin, null: the entropy before the first step."""
    to: Positive | None = None
    """Where linear and cosine end."""
    steps: Count | None = None
    """Steps that linear and cosine take."""

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Target:
        schedule = self.kind in ("linear", "cosine")
        needs = {"value": self.kind == "value", "to": schedule, "steps": schedule}
        for name, needed in needs.items():
            is_set = getattr(self, name) is not None
            if needed and not is_set:
                raise ValueError(f"a target of kind {self.kind} needs {name}")
            if is_set and not needed and not (name == "value" and schedule):
                raise ValueError(f"a target of kind {self.kind} has no {name}")
        return self

    def at(self, step: int, start: float) -> float:
        """The target entropy after a step.

        Args:
            step: The step, from 1.
            start: The first measured entropy, nats per token.

        Returns:
            h*, nats per token.
        """
        begin = start if self.value is None else self.value
        if self.to is None or self.steps is None:  # hold, value
            return begin
        progress = min(step / self.steps, 1.0)
        if self.kind == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return begin + (self.to - begin) * progress


class Gains(_Section):
    """How the distance to the target sets how hard the control acts."""

    proportional: NotNegative = 0.1
    """Share of the error that one step is to make good."""
    integral: NotNegative = 0.01
    """The same of the sum of all errors."""
    limit: Positive = 0.05
    """Largest change asked of one step, as a share of the target."""


class Feedback(SavedFields):
    """A proportional–integral controller of h.

    Attributes:
        target: The target entropy.
        start: The first entropy observed, nats per token; None before it.
        output: Change of h requested of the next step, nats per token; 0 before the first
            observation and without a target.
        share: The output over its limit, in [−1, 1].
    """

    SAVED = ("start", "_sum")

    def __init__(self, target: Target, gains: Gains | None = None) -> None:
        """Start before the first observation.

        Args:
            target: The target entropy.
            gains: k_p, k_i and the limit.
        """
        self.target = target
        self._gains = gains or Gains()
        self.start: float | None = None
        self._sum = self._last_error = 0.0
        self.output = self.share = 0.0
        self._latest: dict[str, float] = {}

    def observe(self, step: int, entropy: float, *, ahead: int = 1) -> None:
        """Update with the entropy before a step, and compute the request to the step.

        Args:
            step: The step about to be taken, from 1.
            entropy: ĥ, nats per token.
            ahead: Number of steps after which the target is to be met; 0 for the target before this
                step, where the caller adds the change of the schedule in this step.

        Raises:
            ValueError: If the entropy is not a finite number.
        """
        if not math.isfinite(entropy):
            raise ValueError(
                f"The entropy before step {step} is {entropy}: the feedback needs a finite number."
            )
        self.start = entropy if self.start is None else self.start
        self._latest = {"entropy": entropy}
        if self.target.kind == "none":
            return
        target = self.target.at(step - 1 + ahead, self.start)
        error = target - entropy
        limit = self._gains.limit * target
        unlimited = self._gains.proportional * error + self._gains.integral * (self._sum + error)
        self._last_error = error if abs(unlimited) <= limit or unlimited * error < 0 else 0.0
        self._sum += self._last_error
        self.output = max(-limit, min(limit, unlimited))
        self.share = self.output / limit
        self._latest |= {"target": target, "error": error, "output": self.output}

    def scheduled(self, step: int) -> float:
        """The change of the target in a step, nats per token; 0 of a target without schedule."""
        start = self.start or 0.0
        return self.target.at(step, start) - self.target.at(step - 1, start)

    def forget(self) -> None:
        """Remove the last error from the integral, because its request was not applied."""
        self._sum -= self._last_error
        self._last_error = 0.0

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last observation."""
        return dict(self._latest)
