"""A Kalman filter of one number, such as the entropy level of a run.

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

from isentrope.system.saved_fields import SavedFields

SMALLEST_ENTROPY = 1e-9
"""Nats below which entropy is 0."""
NOISE_WINDOW = 16
"""Measurements whose variances are averaged."""
DRIFT = 0.1
"""Change of a filtered gain from one measurement to the next, as a share."""
SMALLEST_VARIANCE = 1e-300
"""Variance of a measurement without an error."""


class KalmanFilter(SavedFields):
    """The mean and variance of h given all observations so far.

    Attributes:
        value: ĥ, nats per token; NaN before the first observation.
        variance: Its variance; infinite before the first observation.
        count: Measurements.
        noise: r of the last measurements, in squares of their unit.
    """

    def __init__(self) -> None:
        self.value = math.nan
        self.variance = math.inf
        self.count = 0
        self.noise = 0.0

    def observe(self, value: float, variance: float, unit: float | None = None) -> None:
        """Update with a measurement of h.

        Args:
            value: y, nats per token.
            variance: What is said of its sampling error.
            unit: Size in which errors are comparable; None for the level before this measurement.
        """
        first = math.isinf(self.variance)
        unit = max(unit or (value if first else self.value), SMALLEST_ENTROPY)
        self.count += 1
        self.noise += (variance / unit**2 - self.noise) / min(self.count, NOISE_WINDOW)
        r = max(self.noise * unit**2, SMALLEST_VARIANCE)
        if first:
            self.value = value
            self.variance = r
            return
        gain = self.variance / (self.variance + r)
        self.value += gain * (value - self.value)
        self.variance *= 1 - gain

    def filtered(self, value: float, error: float, unit: float) -> tuple[float, float]:
        """The level and its error after a measurement with an error, all in multiples of a unit."""
        if self.count:
            self.variance += (DRIFT * self.value) ** 2
        self.observe(value / unit, (error / unit) ** 2, 1.0)
        return self.value * unit, math.sqrt(self.variance) * unit

    def state_dict(self) -> dict[str, float]:
        """The state as plain JSON; empty before the first observation."""
        return dict(vars(self)) if self.count else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Resume from a saved state."""
        if state:
            vars(self).update({name: type(x)(state[name]) for name, x in vars(self).items()})
