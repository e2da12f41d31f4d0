"""Feedback: from the entropy that was seen and the one that is wanted, how hard to act.

    e_t = h*_t − ĥ_t,     output_t = clip(k_p e_t + k_i Σ_s e_s, ± limit · h*_t)

h is in nats per token; the output is the change of h that is asked of the next step. The integral
stands still while the output is at its limit and the error would push it further, and where a
control did not do what was asked (`forget`): anti-windup.
`share` is output over limit, in [−1, 1]: what a token control multiplies its strength by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TargetKind = Literal["none", "hold", "value", "linear", "cosine"]


@dataclass(frozen=True)
class Target:
    """The entropy that is wanted at each step.

    Attributes:
        kind: "none"; "hold" (the first entropy seen); "value"; "linear" or "cosine", from `value`
            (the first entropy seen, where it is None) to `to` over `steps` steps.
        value: Nats per token.
        to: Nats per token, of "linear" and "cosine".
        steps: Steps from one to the other.
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
            given = getattr(self, name)
            if needed and given is None:
                raise ValueError(f"A target of kind {self.kind} needs {name}.")
            if given is not None and not allowed[name]:
                raise ValueError(f"A target of kind {self.kind} has no {name}.")
            if given is not None and not (math.isfinite(given) and given > 0):
                raise ValueError(f"{name} of a target must be positive, got {given}.")

    def at(self, step: int, start: float) -> float:
        """The entropy wanted after a step.

        Args:
            step: The step, from 1.
            start: The first entropy seen, nats per token.

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
        target: What is wanted.
        output: Change of h asked of the next step, nats per token; 0 before the first observation
            and without a target.
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
        """Start with nothing seen.

        Args:
            target: What is wanted.
            proportional: k_p, share of the error that one step is to make good.
            integral: k_i, the same of the sum of all errors.
            limit: Largest change asked of a step, as a share of the target.

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
        self._start: float | None = None
        self._sum = self._last = 0.0
        self.output = self.share = 0.0
        self._latest: dict[str, float] = {}

    def observe(self, step: int, entropy: float, *, ahead: int = 1) -> None:
        """See the entropy before a step, and find what to ask of the step.

        Args:
            step: The step about to be taken, from 1.
            entropy: ĥ, nats per token.
            ahead: Steps after which the target is to be met; 0 for the target of now, where the
                caller adds what the schedule changes in this step.

        Raises:
            ValueError: If the entropy is not a finite number.
        """
        if not math.isfinite(entropy):
            raise ValueError(f"The entropy before step {step} is {entropy}: nothing can follow it.")
        self._start = entropy if self._start is None else self._start
        self._latest = {"control/entropy": entropy}
        if self.target.kind == "none":
            return
        wanted = self.target.at(step - 1 + ahead, self._start)
        error, most = wanted - entropy, self._limit * wanted
        proportional, integral = self._gains
        raw = proportional * error + integral * (self._sum + error)
        self._last = error if abs(raw) <= most or raw * error < 0 else 0.0
        self._sum += self._last
        self.output = max(-most, min(most, raw))
        self.share = self.output / most
        self._latest |= {
            "control/target": wanted,
            "control/error": error,
            "control/output": self.output,
        }

    def forget(self) -> None:
        """Take the last error back out of the integral: what was asked for it was not done."""
        self._sum -= self._last
        self._last = 0.0

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last observation."""
        return dict(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """The start and the integral, as plain JSON."""
        return {"start": self._start, "sum": self._sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: What `state_dict` returned.
        """
        self._start, self._sum = state["start"], state["sum"]
