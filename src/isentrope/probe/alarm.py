"""The alarm: warns when entropy begins to fall faster, or when half of it will soon be gone.

A reading of the probe gives the rate of a step, r = ΔH/H, the relative change of entropy with its
standard error. Two things raise the alarm, each with probability α/2 at most per reading if nothing
changed (`change_point`):

    a change of the rate: entropy now falls faster than before, or rises faster
    half of the entropy will be gone within `half_life` steps, (ln 2)/(−r), at the present rate

The present rate is the mean since the last change. Each change is reported once, and the half-life
once between two changes. Steps between two readings are assumed to be like those with a reading.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from isentrope.probe.callback import EntropyProbe
from isentrope.probe.change_point import SegmentMean, find_change_point, mean_of
from isentrope.system.processes import rank

log = logging.getLogger("isentrope")

CONFIDENCE = 0.95
"""Coverage of the reported intervals."""
MIN_READINGS = 3
"""Readings before a rate is reported."""
CONFIRMING_READINGS = 3
"""Readings after a change before it is reported: one outlier is not a change."""
MAX_READINGS = 256
"""Readings of one rate that are kept."""
ENTROPY_SHARE = 0.9
"""Share of the entropy whose tokens are counted."""


class Alarm(TrainerCallback):
    """A callback, behind the probe, that watches its readings.

    Attributes:
        sentences: The alarms raised in this process.
    """

    def __init__(
        self,
        probe: EntropyProbe,
        *,
        false_alarms: float = 0.005,
        half_life: int = 50,
        stop: bool = False,
        control: str | None = None,
    ) -> None:
        """Start without readings.

        Args:
            probe: The probe to watch; it must come first in the trainer's callbacks.
            false_alarms: α, the largest probability of a false alarm per reading.
            half_life: Steps; the alarm is raised where half of the entropy would be gone within
                fewer.
            stop: Save a checkpoint and stop training at an alarm.
            control: Name of the control of entropy that the run has; None for none.

        Raises:
            ValueError: If α is not between 0 and 1, or the half-life is not positive.
        """
        if not (0 < false_alarms < 1 and half_life > 0):
            raise ValueError(
                f"The alarm needs 0 < false_alarms < 1 and half_life > 0, got {false_alarms} and "
                f"{half_life}."
            )
        self._probe, self._entropy = probe, f"probe/entropy_{probe.options.functional}"
        self._level, self._half_life, self._stop = false_alarms / 2, half_life, stop
        self._control = control
        self._readings: list[tuple[int, float, float]] = []
        self._announced = self._stopping = False
        self._latest: dict[str, float] = {}
        self.sentences: list[str] = []
        self.batch_entropies: Callable[[], Sequence[Tensor] | None] = lambda: None

    def latest(self) -> dict[str, float]:
        """Flat numbers of the step just taken; empty if it was not probed."""
        return dict(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """The readings since the last change, as plain JSON."""
        return {"readings": [list(x) for x in self._readings], "told": self._announced}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._readings = [tuple(x) for x in state["readings"]]
        self._announced = state["told"]

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Use the probe's reading of the step, if there is one."""
        self._latest = {}
        if (reading := self._rate_of(self._probe.latest())) is not None:
            sentence = self.observe(state.global_step, *reading)
            if sentence and rank() == 0:
                log.warning(sentence)
            self._stopping |= self._stop and sentence is not None
        # a checkpoint between two uses of a batch could not be resumed
        if self._stopping and state.global_step % getattr(args, "num_iterations", 1) == 0:
            control.should_save = control.should_training_stop = True
            self._stopping = False
            if rank() == 0:
                log.warning(
                    "Training stops after step %d with a checkpoint, as set by alarm.stop.",
                    state.global_step,
                )

    def _rate_of(self, reading: Mapping[str, float]) -> tuple[float, float] | None:
        """(r, its error) of a reading that can be trusted."""
        change, se = (reading.get(f"probe/change{end}", math.nan) for end in ("", "_se"))
        entropy = reading.get(self._entropy, math.nan)
        usable = all(map(math.isfinite, (change, se, entropy))) and se > 0 and entropy > 0
        if not usable or not reading.get("probe/trust"):
            return None
        return change / entropy, se / entropy

    def observe(self, step: int, rate: float, se: float) -> str | None:
        """Add the rate of a step.

        Args:
            step: The step, from 1.
            rate: Relative change of entropy in it.
            se: Its standard error.

        Returns:
            The alarm, or None.
        """
        self._readings = [*self._readings, (step, rate, se)][-MAX_READINGS:]
        sentence = self._change(step) or self._spent(step)
        now = mean_of(*self._rates())
        self._latest = {"alarm/rate": now.value, "alarm/raised": float(sentence is not None)}
        if math.isfinite(now.se):
            self._latest["alarm/rate_se"] = now.se
        if len(self._readings) >= MIN_READINGS:
            value, low, high = half_life(now)
            ends = {"": value, "_ci_low": low, "_ci_high": high}
            self._latest |= {
                f"alarm/half_life{end}": x for end, x in ends.items() if math.isfinite(x)
            }
        if sentence is not None:
            self.sentences.append(sentence)
        return sentence

    def _rates(self) -> tuple[list[float], list[float]]:
        """Relative changes, and their standard errors."""
        return [rate for _, rate, _ in self._readings], [se for _, _, se in self._readings]

    def _change(self, step: int) -> str | None:
        split = find_change_point(*self._rates(), self._level)
        if split is None or split.p_value > self._level:
            return None
        if len(self._readings) - split.place < CONFIRMING_READINGS:
            return None
        del self._readings[: split.place]
        self._announced, before, now = False, split.before.value, split.after
        if min(before, 0) <= now.value <= max(before, 0):
            return None  # slower than before: no alarm
        self._announced = now.value < 0  # the sentence gives the half-life
        return (
            f"Entropy alarm at step {step}: from step {self._readings[0][0]} on entropy changes by "
            f"{_per_step(now)}, before by {100 * before:+.2g} % (p = {split.p_value:.1g}). "
            f"{self._advice(now)}"
        )

    def _spent(self, step: int) -> str | None:
        if self._announced or len(self._readings) < MIN_READINGS:
            return None
        now = mean_of(*self._rates())
        _, high = now.interval(1 - 2 * self._level)
        if not high < -math.log(2) / self._half_life:
            return None
        self._announced = True
        rate = _per_step(now)
        return f"Entropy alarm at step {step}: entropy changes by {rate}. {self._advice(now)}"

    def _advice(self, now: SegmentMean) -> str:
        parts = []
        if now.value < 0:
            value, low, high = half_life(now)
            ends = f"{low:.0f} to {high:.0f}" if math.isfinite(high) else f"{low:.0f} or more"
            parts.append(
                f"At this rate half of the entropy is gone in about {value:.0f} steps ({ends})."
            )
        entropies = self.batch_entropies()
        if entropies is not None:
            share = holding(torch.cat(list(entropies)), ENTROPY_SHARE)
            parts.append(
                f"In the last batch {100 * share:.2g} % of the tokens hold "
                f"{100 * ENTROPY_SHARE:.0f} % of "
                "the entropy."
            )
        first = (
            "a control of entropy (the section control)"
            if self._control is None
            else f"other settings of the control {self._control}"
        )
        parts.append(f"Candidates: {first}, a lower training.learning_rate, or a stop here.")
        return " ".join(parts)


def half_life(rate: SegmentMean) -> tuple[float, float, float]:
    """Steps until half of the entropy is gone at a rate, with its interval.

    Args:
        rate: Mean relative change per step.

    Returns:
        (ln 2)/(−r) and its ends at 95 %; infinite where entropy may not fall.
    """
    low, high = rate.interval(CONFIDENCE)
    return _steps(rate.value), _steps(low), _steps(high)


def holding(entropies: Tensor, share: float) -> float:
    """The smallest share of tokens that holds a share of the entropy.

    Args:
        entropies: (m,) H of each token.
        share: Of their sum.

    Returns:
        Between 0 and 1; 1 where all entropies are 0.
    """
    ordered = entropies.double().sort(descending=True).values.cumsum(0)
    if not float(ordered[-1]) > 0:
        return 1.0
    return (int((ordered < share * ordered[-1] * (1 - 1e-12)).sum()) + 1) / len(ordered)


def _steps(rate: float) -> float:
    return math.log(2) / -rate if rate < 0 else math.inf


def _per_step(rate: SegmentMean) -> str:
    low, high = (100 * x for x in rate.interval(CONFIDENCE))
    return f"{100 * rate.value:+.2g} % per step (95 % interval {low:+.2g} to {high:+.2g})"
