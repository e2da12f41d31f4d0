"""An exponential moving average of estimates, with its error.

    m_t = Σ_k β^(t−k) x_k / Σ_k β^(t−k),     SE² = Σ_k β^(2(t−k)) se_k² / (Σ_k β^(t−k))²

The errors of the x_k are independent (fresh samples each). What is estimated moves with training:
the mean is of the last 1/(1 − β) readings, and its error is the sampling error alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class RunningMean:
    """The moving average of all estimates so far."""

    def __init__(self, ema_decay: float = 0.9) -> None:
        """Start without estimates.

        Args:
            ema_decay: β in [0, 1).
        """
        self._ema_decay = ema_decay
        self._weight = self._value = self._variance = 0.0

    def update(self, value: float, se: float) -> None:
        """Add an estimate."""
        self._weight = self._ema_decay * self._weight + 1
        self._value = self._ema_decay * self._value + value
        self._variance = self._ema_decay**2 * self._variance + se**2

    @property
    def value(self) -> float:
        """The mean; NaN without an estimate."""
        return self._value / self._weight if self._weight else math.nan

    @property
    def se(self) -> float:
        """Its standard error."""
        return self._variance**0.5 / self._weight

    def state_dict(self) -> dict[str, float]:
        """The sums, as plain JSON."""
        return {"weight": self._weight, "value": self._value, "variance": self._variance}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from saved sums."""
        self._weight, self._value = state["weight"], state["value"]
        self._variance = state["variance"]
