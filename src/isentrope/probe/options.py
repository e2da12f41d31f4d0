"""What a reading of the probe is, in one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isentrope.estimators.functional import Functional, Method
from isentrope.probe.requirements import LENGTH, setting
from isentrope.update.optimizer_rules import Preconditioning


@dataclass(frozen=True)
class ProbeOptions:
    """What a reading is.

    Attributes:
        log_every: Also predict every so many steps, by the gradient of the last reading
            (`kept_gradient`): one backward pass per reading, and O(d) per prediction.
        functional: "per_token" (h) or "per_sequence" (ℋ), of every change.
        method: "prefix" or "sequence".
        second_order: Also δH₂ and the linear range, at about twice the cost.
        fresh: Also measure ΔH on a second mini-batch, independent of the prediction.
        preconditioning: Predict the step as taken, or with second moments of before it; then the
            first step has no reading.
        seed: Fixes prompts and tokens of every reading.
        ema_decay: β of the exponential moving averages over readings, in [0, 1).
        temperature: Sampling temperature; by default the trainer's.
        max_new_tokens: Longest response in tokens; by default the trainer's.
    """

    log_every: int | None = None
    functional: Functional = "per_token"
    method: Method = "prefix"
    second_order: bool = False
    fresh: bool = False
    preconditioning: Preconditioning = "this_step"
    seed: int = 0
    ema_decay: float = 0.9
    temperature: float | None = None
    max_new_tokens: int | None = None

    def temperature_of(self, args: Any) -> float:
        """The temperature of a trainer's arguments, or the one given for a trainer without."""
        return setting(self.temperature, args, "temperature", "temperature")

    def length_of(self, args: Any) -> int:
        """The longest response likewise."""
        return setting(self.max_new_tokens, args, *LENGTH)
