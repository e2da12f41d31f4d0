"""Feedback: a filtered level of entropy, and how much a control changes entropy next.

    e_t = h*_t − ĥ_t,     output_t = clip(k_p e_t + k_i Σ_s e_s, ± limit · h*_t)

h* is the target and ĥ the measured entropy, nats per token or per response, as the control
has them; the output is the change of h that
is requested of the next step. Anti-windup: the integral does not change while the output is at its
limit and the error would push it further, or where a control did not apply the request (`forget`).
`share` is the output divided by its limit, in [−1, 1]; a token control multiplies its strength by
it.

The entropy level of a run, filtered: a scalar Kalman filter of h.

    h_{t+1} = h_t + w_t,     Var w_t = q_t        q_t: the square of what step t may change
    y_t     = h_t + e_t,     Var e_t = r_t        y_t: the mean over that step's own E

One E of a few hundred tokens measures h to a few percent, and most steps change it by less, so the
filter combines all measurements so far. A predicted change sets q and not h: an error of
predictions that lasts would become one of the level. r_t is not what one E says of its own error:
where entropy is in few long or rare responses, an E without them has both a low mean and a small
error, and a mean weighted by such errors is too low. r_t is their average over the last
measurements, as a share of the square of the level, which may fall tenfold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from isentrope.control.base import OPTIONS, Count, NotNegative, Positive
from isentrope.system.saved_fields import SavedFields

LEAST = 1e-9
"""Nats below which entropy is 0."""


class Level(SavedFields):
    """The mean and variance of h given all observations so far.

    Attributes:
        value: ĥ, nats per token; NaN before the first observation.
        variance: Its variance; infinite before the first observation.
        count: Measurements.
        noise: r of the last measurements, in squares of their unit.
    """

    WINDOW, DRIFT = 16, 0.1
    """Measurements whose variances are averaged; change from one to the next, as a share."""

    def __init__(self) -> None:
        self.value, self.variance = math.nan, math.inf
        self.count, self.noise = 0, 0.0

    def observe(self, value: float, variance: float, unit: float | None = None) -> None:
        """Update with a measurement of h.

        Args:
            value: y, nats per token.
            variance: What is said of its sampling error.
            unit: Size in which errors are comparable; None for the level before this measurement.
        """
        first = math.isinf(self.variance)
        unit = max(unit or (value if first else self.value), LEAST)
        self.count += 1
        self.noise += (variance / unit**2 - self.noise) / min(self.count, self.WINDOW)
        r = max(self.noise * unit**2, 1e-300)
        if first:
            self.value, self.variance = value, r
            return
        gain = self.variance / (self.variance + r)
        self.value += gain * (value - self.value)
        self.variance *= 1 - gain

    def filtered(self, value: float, error: float, unit: float) -> tuple[float, float]:
        """The level and its error after a measurement with an error, all in multiples of a unit."""
        if self.count:
            self.variance += (self.DRIFT * self.value) ** 2
        self.observe(value / unit, (error / unit) ** 2, 1.0)
        return self.value * unit, math.sqrt(self.variance) * unit

    def state_dict(self) -> dict[str, float]:
        """The state as plain JSON; empty before the first observation."""
        return dict(vars(self)) if self.count else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Resume from a saved state."""
        if state:
            vars(self).update({name: type(x)(state[name]) for name, x in vars(self).items()})


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
        """
        begin = start if self.value is None else self.value
        if self.to is None or self.steps is None:  # hold, value
            return begin
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
        self._latest |= {"target": target, "error": error, "output": self.output}

    def scheduled(self, step: int) -> float:
        """The change of the target in a step, nats per token; 0 of a target without schedule."""
        start = self.start or 0.0
        return self.target.at(step, start) - self.target.at(step - 1, start)

    def forget(self) -> None:
        """Remove the last error from the integral, because its request was not applied."""
        self._sum -= self._last
        self._last = 0.0

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last observation."""
        return dict(self._latest)
