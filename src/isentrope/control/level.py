"""The entropy level of a run, filtered: a scalar Kalman filter of h.

    h_{t+1} = h_t + Δ_t + w_t,     Var w_t = q_t        Δ_t: the change predicted for step t
    y_t     = h_t + e_t,           Var e_t = r_t        y_t: the mean over that step's own E

One E of a few hundred tokens measures h to a few percent, and a step changes it by less. The filter
combines the predicted changes with all measurements so far, each weighted by its variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


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
