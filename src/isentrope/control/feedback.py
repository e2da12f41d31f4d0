"""Feedback: a filtered level of entropy, and how much a control changes entropy next.

    e_t = h*_t − ĥ_t,     output_t = clip(k_p e_t + k_i Σ_s e_s, ± limit · h*_t)

h* is the target and ĥ the measured entropy, nats per token or per response, as the control
has them; the output is the change of h that
is requested of the next step. Anti-windup: the integral does not change while the output is at its
limit and the error would push it further, or where a control did not apply the request (`forget`).
`share` is the output divided by its limit, in [−1, 1]; a token control multiplies its strength by
it.

The entropy level of a run, filtered: a scalar Kalman filter of h.

    h_{t+1} = h_t + Δ_t + w_t,     Var w_t = q_t        Δ_t: the change predicted for step t
    y_t     = h_t + e_t,           Var e_t = r_t        y_t: the mean over that step's own E

One E of a few hundred tokens measures h to a few percent, and a step changes it by less. The filter
combines the predicted changes with all measurements so far, each weighted by its variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from isentrope.control.base import OPTIONS, Count, NotNegative, Positive


class Level:
    """The mean and variance of h given all observations so far.

    Attributes:
        value: ĥ, nats per token; NaN before the first observation.
        variance: Its variance; infinite before the first observation.
    """

    def __init__(self) -> None:
        self.value, self.variance = math.nan, math.inf

    def observe(self, value: float, variance: float) -> None:
        """Update with a measurement of h.

        Args:
            value: y, nats per token.
            variance: r, of its sampling error, positive.
        """
        if math.isinf(self.variance):
            self.value, self.variance = value, variance
            return
        gain = self.variance / (self.variance + variance)
        self.value += gain * (value - self.value)
        self.variance *= 1 - gain

    def predict(self, change: float, variance: float) -> None:
        """Advance by the predicted change of a step.

        Args:
            change: Δ, nats per token.
            variance: q, of its error.
        """
        self.value += change
        self.variance += variance

    def state_dict(self) -> dict[str, float | None]:
        """Mean and variance as plain JSON; null before the first observation."""
        empty = math.isinf(self.variance)
        return {
            "value": None if empty else self.value,
            "variance": None if empty else self.variance,
        }

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Resume from a saved state."""
        value, variance = state["value"], state["variance"]
        self.value = math.nan if value is None else value
        self.variance = math.inf if variance is None else variance


class SteadyLevel(Level):
    """A level whose measurements have one variance: the mean of those said, over the last few.

    Each is known from few groups alone; weighted by them, measurements whose error came out small
    by chance would count most.
    """

    WINDOW, DRIFT = 8, 0.1
    """Measurements whose variances are averaged; change from one to the next, as a share."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.noise = 0, 0.0

    def observe(self, value: float, variance: float) -> None:
        """Update with a measurement and what is said of its variance."""
        self.count += 1
        self.noise += (variance - self.noise) / min(self.count, self.WINDOW)
        super().observe(value, self.noise)

    def filtered(self, value: float, error: float) -> tuple[float, float]:
        """The level and its error, after a measurement with an error."""
        if not math.isinf(self.variance):
            self.predict(0.0, (self.DRIFT * self.value) ** 2)
        self.observe(value, max(error**2, 1e-300))
        return self.value, math.sqrt(self.variance)

    def state_dict(self) -> dict[str, float | None]:
        """Also the variance of measurements."""
        return {**super().state_dict(), "count": self.count, "noise": self.noise}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Resume from a saved state."""
        super().load_state_dict(state)
        self.count, self.noise = int(state["count"] or 0), float(state["noise"] or 0.0)


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
            given = getattr(self, name) is not None
            if needed and not given:
                raise ValueError(f"a target of kind {self.kind} needs {name}")
            if given and not needed and not (name == "value" and schedule):
                raise ValueError(f"a target of kind {self.kind} has no {name}")
        return self

    def at(self, step: int, start: float) -> float:
        """The target entropy after a step.

        Args:
            step: The step, from 1.
            start: The first measured entropy, nats per token.

        Returns:
            h*, nats per token.

        Raises:
            ValueError: If there is no target.
        """
        begin = start if self.value is None else self.value
        if self.kind in ("hold", "value"):
            return begin
        if self.kind == "none":
            raise ValueError("There is no target.")
        assert self.to is not None
        assert self.steps is not None
        part = min(step / self.steps, 1.0)
        if self.kind == "cosine":
            part = (1 - math.cos(math.pi * part)) / 2
        return begin + (self.to - begin) * part


class Gains(_Section):
    """How the distance to the target sets how hard the control acts."""

    proportional: NotNegative = 0.1
    """Share of the error that one step is to make good."""
    integral: NotNegative = 0.01
    """The same of the sum of all errors."""
    limit: Positive = 0.05
    """Largest change asked of one step, as a share of the target."""


class Feedback:
    """A proportional–integral controller of h.

    Attributes:
        target: The target entropy.
        start: The first entropy observed, nats per token; None before it.
        output: Change of h requested of the next step, nats per token; 0 before the first
            observation and without a target.
        share: The output over its limit, in [−1, 1].
    """

    def __init__(self, target: Target, gains: Gains | None = None) -> None:
        """Start before the first observation.

        Args:
            target: The target entropy.
            gains: k_p, k_i and the limit.
        """
        self.target, self._gains = target, gains or Gains()
        self.start: float | None = None
        self._sum = self._last = 0.0
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
        error, largest = target - entropy, self._gains.limit * target
        raw = self._gains.proportional * error + self._gains.integral * (self._sum + error)
        self._last = error if abs(raw) <= largest or raw * error < 0 else 0.0
        self._sum += self._last
        self.output = max(-largest, min(largest, raw))
        self.share = self.output / largest
        self._latest |= {
            "target": target,
            "error": error,
            "output": self.output,
        }

    def scheduled(self, step: int) -> float:
        """The change of the target in a step, nats per token; 0 of a target without schedule."""
        if self.target.kind not in ("linear", "cosine"):
            return 0.0
        assert self.start is not None  # an entropy was observed before
        return self.target.at(step, self.start) - self.target.at(step - 1, self.start)

    def forget(self) -> None:
        """Remove the last error from the integral, because its request was not applied."""
        self._sum -= self._last
        self._last = 0.0

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last observation."""
        return dict(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """The start and the integral, as plain JSON."""
        return {"start": self.start, "sum": self._sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""
        self.start, self._sum = state["start"], state["sum"]
