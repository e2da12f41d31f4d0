"""The alarm: warns when entropy begins to fall faster, or when half of it will soon be gone.

A reading of the probe gives the rate of a step, r = ΔH/H, the relative change of entropy with its
standard error σ. The present rate is the mean of the readings x_j since the last change, with the
weights w_j = 1/σ_j². Its error is scaled by their spread, where that is larger than their errors:

    m = Σ w_j x_j / W,     W = Σ w_j,     SE² = max(1, Σ w_j (x_j − m)²/(n − 1)) / W

Two things raise the alarm, each with probability α/2 at most per reading if readings are normal:

    a change of the rate (`change_point`): entropy falls faster than before, or rises faster
    (ln 2)/(−m) is below `half_life` steps beyond the error of m, by a t-test

Each change is reported once, and the half-life once between two changes. Steps between two readings
are assumed to be like those with a reading.

"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from isentrope.nouns.freedom import t_quantile
from isentrope.probe.callback import EntropyProbe
from isentrope.probe.change_point import find_change_point
from isentrope.system.log import log
from isentrope.system.processes import rank
from isentrope.system.saved_fields import SavedFields

CONFIDENCE = 0.95
"""Coverage of the intervals that are logged; that of the alarm's sentence is 1 − α."""
MIN_READINGS = 3
"""Readings of a rate before its half-life, or a change to it, is reported."""
MAX_READINGS = 256
"""Readings of one rate that are kept."""
ENTROPY_SHARE = 0.9
"""Share of the entropy whose tokens are counted."""


class Alarm(SavedFields, TrainerCallback):
    """A callback, behind the probe, that watches its readings.

    Attributes:
        batch_entropies: Gives the entropies of the last batch's tokens, where they are known.
    """

    SAVED = ("_readings", "_told")

    def __init__(
        self,
        probe: EntropyProbe,
        *,
        false_alarms: float = 0.005,
        half_life: int = 50,
        stop: bool = False,
    ) -> None:
        """Start without readings.

        Args:
            probe: The probe to watch; it must come first in the trainer's callbacks.
            false_alarms: α, the largest probability of a false alarm per reading.
            half_life: Steps; the alarm is raised where half of the entropy would be gone within
                fewer.
            stop: Save a checkpoint and stop training at an alarm.

        Raises:
            ValueError: If α is not between 0 and 1, or the half-life is not positive.
        """
        if not (0 < false_alarms < 1 and half_life > 0):
            raise ValueError(
                f"The alarm needs 0 < false_alarms < 1 and half_life > 0, got {false_alarms} and "
                f"{half_life}."
            )
        self._probe = probe
        self._entropy_key = f"probe/entropy_{probe.options.functional}"
        self._level = false_alarms / 2
        self._half_life = half_life
        self._stop = stop
        self._readings: list[list[float]] = []
        self._told = self._stopping = False
        self._latest: dict[str, float] = {}
        self.batch_entropies: Callable[[], Sequence[Tensor] | None] = lambda: None

    def latest(self) -> dict[str, float]:
        """Flat numbers of the step just taken; empty if it was not probed."""
        return dict(self._latest)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Use the probe's reading of the step, if there is one."""
        self._latest = {}
        if (rate := self._read_rate(self._probe.latest())) is not None:
            sentence = self.observe(state.global_step, *rate)
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

    def _read_rate(self, reading: Mapping[str, float]) -> tuple[float, float] | None:
        """(r, its error) of a reading that can be trusted."""
        names = ("probe/change", "probe/change_se", self._entropy_key)
        change, se, entropy = (reading.get(name, math.nan) for name in names)
        usable = math.isfinite(change) and math.inf > se > 0 and math.inf > entropy > 0
        if not usable or not reading.get("probe/trust"):
            return None
        return change / entropy, se / entropy

    def observe(self, step: int, rate: float, se: float) -> str | None:
        """Add the rate of a step.

        Args:
            step: The step, from 1.
            rate: Relative change of entropy in it.
            se: Its standard error, positive.

        Returns:
            The alarm, or None.
        """
        self._readings = [*self._readings, [step, rate, se]][-MAX_READINGS:]
        change = self._detect_change()
        n = len(self._readings)
        mean, error = weighted_mean(self._readings)
        self._latest = {"alarm/rate": mean, "alarm/raised": 0.0}
        if n > 1:
            self._latest["alarm/rate_se"] = error
        if n < MIN_READINGS:
            return None

        def interval(confidence: float) -> tuple[float, float]:
            half = t_quantile(n - 1, confidence) * error
            return mean - half, mean + half

        ends = dict(zip(("_ci_low", "_ci_high"), interval(CONFIDENCE), strict=True))
        half_life = {end: _find_half_life(x) for end, x in {"": mean, **ends}.items()}
        self._latest |= {f"alarm/half_life{end}": x for end, x in half_life.items() if x < math.inf}
        # the sentence is said at the reading that first passes the test, and has its interval
        confidence = 1 - 2 * self._level
        low, high = interval(confidence)
        soon = _find_half_life(high) < self._half_life
        if not change and (self._told or not soon):
            return None
        self._told = mean < 0  # the sentence gives the half-life
        self._latest["alarm/raised"] = 1.0
        concentration = ""
        if (entropies := self.batch_entropies()) is not None:
            concentration = (
                f" In the last batch {100 * share_holding(torch.cat(list(entropies))):.2g} % of "
                f"the tokens hold {100 * ENTROPY_SHARE:.0f} % of the entropy."
            )
        return (
            f"Entropy alarm at step {step}: entropy changes by {100 * mean:+.2g} % per step "
            f"({100 * confidence:.4g} % interval {100 * low:+.2g} to {100 * high:+.2g}){change}."
            f"{_describe_half_life(*map(_find_half_life, (mean, low, high)))}{concentration} "
            "Candidates: a control of entropy (the section control), or other settings of the one "
            "that is on, a lower training.learning_rate, or a stop here."
        )

    def _detect_change(self) -> str:
        """Begin again at a change of the rate; the change in words if entropy now moves faster."""
        readings = self._readings
        change = find_change_point(
            [x for _, x, _ in readings], [se for *_, se in readings], self._level
        )
        if change is None:
            return ""
        place, p = change
        if p > self._level or len(readings) - place < MIN_READINGS:
            return ""
        self._readings = readings[place:]
        self._told = False
        before, _ = weighted_mean(readings[:place])
        after, _ = weighted_mean(self._readings)
        if min(before, 0) <= after <= max(before, 0):
            return ""
        return f" from step {readings[place][0]} on, before by {100 * before:+.2g} % (p = {p:.1g})"


def share_holding(entropies: Tensor, share: float = ENTROPY_SHARE) -> float:
    """The smallest share of tokens that holds a share of the entropy.

    Args:
        entropies: (m,) H of each token.
        share: Of their sum.

    Returns:
        Between 0 and 1; 1 where all entropies are 0.
    """
    share_held = entropies.double().sort(descending=True).values.cumsum(0)
    if not float(share_held[-1]) > 0:
        return 1.0
    return (int((share_held < share * share_held[-1] * (1 - 1e-12)).sum()) + 1) / len(share_held)


def weighted_mean(readings: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean rate of readings, and its error: infinite with one reading.

    Args:
        readings: At least one: step, rate and its standard error.

    Returns:
        m and SE.
    """
    _, x, se = np.asarray(readings).T
    weights = se**-2
    mean = np.average(x, weights=weights)
    if len(x) == 1:
        return float(mean), math.inf
    spread = sum(((x - mean) / se) ** 2) / (len(x) - 1)
    return float(mean), math.sqrt(max(1.0, spread) / sum(weights))


def _find_half_life(rate: float) -> float:
    """Steps until half of the entropy is gone; infinite where it does not fall."""
    return math.log(2) / -rate if rate < 0 else math.inf


def _describe_half_life(value: float, low: float, high: float) -> str:
    """The half-life in words, where entropy falls."""
    if value == math.inf:
        return ""
    ends = f"{low:.0f} to {high:.0f}" if high < math.inf else f"{low:.0f} or more"
    return f" At this rate half of it is gone in about {value:.0f} steps ({ends})."
