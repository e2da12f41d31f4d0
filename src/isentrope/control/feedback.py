"""Feedback: a controller that sets how much a control changes entropy in the next step.

    e_t = h*_t − ĥ_t,     output_t = clip(k_p e_t + k_i Σ_s e_s, ± limit · h*_t)

h* is the target and ĥ the measured entropy, in nats per token; the output is the change of h that
is requested of the next step. Anti-windup: the integral does not change while the output is at its
limit and the error would push it further, or where a control did not apply the request (`forget`).
`share` is the output divided by its limit, in [−1, 1]; a token control multiplies its strength by
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TargetKind = Literal["none", "hold", "value", "linear", "cosine"]


@dataclass(frozen=True)
class Target:
    """The target entropy at each step.

    Attributes:
        kind: "none"; "hold" (the first measured entropy); "value"; "linear" or "cosine", from
            `value` (the first measured entropy, where it is None) to `to` over `steps` steps.
        value: Nats per token.
        to: Nats per token, of "linear" and "cosine".
        steps: Number of steps from one to the other.
    """

    kind: TargetKind = "none"
    value: float | None = None
    to: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        schedule = self.kind in ("linear", "cosine")
        needs = {"value": self.kind == "value", "to": schedule, "steps": schedule}
        allowed = {**needs, "value": needs["value"] or schedule}
        for name, needed in needs.items():
            value = getattr(self, name)
            if needed and value is None:
                raise ValueError(f"A target of kind {self.kind} needs {name}.")
            if value is not None and not allowed[name]:
                raise ValueError(f"A target of kind {self.kind} has no {name}.")
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} of a target must be positive, got {value}.")

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


class Feedback:
    """A proportional–integral controller of h.

    Attributes:
        target: The target entropy.
        start: The first entropy observed, nats per token; None before it.
        output: Change of h requested of the next step, nats per token; 0 before the first
            observation and without a target.
        share: The output over its limit, in [−1, 1].
    """

    def __init__(
        self,
        target: Target,
        *,
        proportional: float = 0.1,
        integral: float = 0.01,
        limit: float = 0.05,
    ) -> None:
        """Start before the first observation.

        Args:
            target: The target entropy.
            proportional: k_p, share of the error that one step is to correct.
            integral: k_i, the same of the sum of all errors.
            limit: Largest change requested of a step, as a share of the target.

        Raises:
            ValueError: If a gain is negative or the limit is not positive.
        """
        if not (proportional >= 0 and integral >= 0 and 0 < limit < math.inf):
            raise ValueError(
                f"Feedback needs gains of 0 or more and a positive limit, got proportional="
                f"{proportional}, integral={integral}, limit={limit}."
            )
        self.target = target
        self._gains, self._limit = (proportional, integral), limit
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
        self._latest = {"control/entropy": entropy}
        if self.target.kind == "none":
            return
        target = self.target.at(step - 1 + ahead, self.start)
        error, largest = target - entropy, self._limit * target
        proportional, integral = self._gains
        raw = proportional * error + integral * (self._sum + error)
        self._last = error if abs(raw) <= largest or raw * error < 0 else 0.0
        self._sum += self._last
        self.output = max(-largest, min(largest, raw))
        self.share = self.output / largest
        self._latest |= {
            "control/target": target,
            "control/error": error,
            "control/output": self.output,
        }

    @property
    def needs_start(self) -> bool:
        """Whether the target starts at an entropy that was not observed yet."""
        relative = self.target.kind != "none" and self.target.value is None
        return relative and self.start is None

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
