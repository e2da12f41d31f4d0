"""The alarm: warns when entropy begins to fall faster, or when half of it will soon be gone.

A reading of the probe gives the rate of a step, r = ΔH/H, the relative change of entropy with its
standard error σ. The present rate is the mean of the readings x_j since the last change, with the
weights w_j = 1/σ_j². Its error is scaled by their spread, where that is larger than their errors:

    m = Σ w_j x_j / W,     W = Σ w_j,     SE² = max(1, Σ w_j (x_j − m)²/(n − 1)) / W

Two things raise the alarm, each with probability α/2 at most per reading if readings are normal:

    a change of the rate (`find_change_point`): entropy falls faster than before, or rises faster
    (ln 2)/(−m) is below `half_life` steps beyond the error of m, by a t-test

Each change is reported once, and the half-life once between two changes. Steps between two readings
are assumed to be like those with a reading.

Detection of a change in the mean of sequential readings, each with a standard error.

    x_j = μ + √φ σ_j ε_j,     w_j = 1/σ_j²,     m(a, b) = Σ_{a ≤ j < b} w_j x_j / W(a, b)

The change-point model with unknown mean and unknown scale φ (Hawkins, Qiu and Kang, 2003): after n
readings every split k in turn is tested by the t statistic of the two weighted means,

    t_k² = (m(k, n) − m(0, k))² / ( s_k² (1/W(0, k) + 1/W(k, n)) ),     s_k² = RSS_k/(n − 2)

with n − 2 degrees of freedom. The errors give the weights and the spread of the readings gives the
scale, so batch-to-batch variance beyond the errors widens the test too. The p-value of
max_k t_k² is found by simulation of ε, the weights held fixed: it depends on neither μ nor φ. So
for normal readings of constant mean the test at level α raises a false alarm at any one reading
with probability α, and at one in 1/α readings on average.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor
from transformers import TrainerCallback

from isentrope.nouns.freedom import t_quantile
from isentrope.probe.callback import EntropyProbe
from isentrope.system.processes import rank
from isentrope.system.saved_fields import SavedFields

log = logging.getLogger("isentrope")

CONFIDENCE = 0.95
"""Coverage of the reported intervals."""
MIN_READINGS = 3
"""Readings of a rate before its half-life, or a change to it, is reported."""
MAX_READINGS = 256
"""Readings of one rate that are kept."""
ENTROPY_SHARE = 0.9
"""Share of the entropy whose tokens are counted."""
MIN_SIDE = 2
"""Readings on either side of a split."""
WINDOW = 32
"""Splits are looked for among this many of the newest readings."""
DRAWS = 3_999
"""Simulated runs behind a p-value."""
_SMALLEST_SCALE = 1e-6
"""Of s²: readings that agree to a thousandth of their errors are equal to rounding."""


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
        self._probe, self._entropy = probe, f"probe/entropy_{probe.options.functional}"
        self._level, self._half_life, self._stop = false_alarms / 2, half_life, stop
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
        names = "probe/change", "probe/change_se", self._entropy
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
        faster = self._faster()
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

        low, high = interval(CONFIDENCE)
        lives = {"": _half_life(mean), "_ci_low": _half_life(low), "_ci_high": _half_life(high)}
        self._latest |= {f"alarm/half_life{end}": x for end, x in lives.items() if x < math.inf}
        soon = _half_life(interval(1 - 2 * self._level)[1]) < self._half_life
        if not faster and (self._told or not soon):
            return None
        self._told = mean < 0  # the sentence gives the half-life
        self._latest["alarm/raised"] = 1.0
        holding = ""
        if (entropies := self.batch_entropies()) is not None:
            holding = (
                f" In the last batch {100 * share_holding(torch.cat(list(entropies))):.2g} % of "
                f"the tokens hold {100 * ENTROPY_SHARE:.0f} % of the entropy."
            )
        return (
            f"Entropy alarm at step {step}: entropy changes by {100 * mean:+.2g} % per step (95 % "
            f"interval {100 * low:+.2g} to {100 * high:+.2g}){faster}.{_left(*lives.values())}"
            f"{holding} Candidates: a control of entropy (the section control), or other "
            "settings of the one that is on, a lower training.learning_rate, or a stop here."
        )

    def _faster(self) -> str:
        """Begin again at a change of the rate; the change in words if entropy now moves faster."""
        readings = self._readings
        found = find_change_point(
            [x for _, x, _ in readings], [se for *_, se in readings], self._level
        )
        if found is None or found[1] > self._level or len(readings) - found[0] < MIN_READINGS:
            return ""
        place, p = found
        self._readings, self._told = readings[place:], False
        before, now = (weighted_mean(part)[0] for part in (readings[:place], self._readings))
        if min(before, 0) <= now <= max(before, 0):
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
    held = entropies.double().sort(descending=True).values.cumsum(0)
    if not float(held[-1]) > 0:
        return 1.0
    return (int((held < share * held[-1] * (1 - 1e-12)).sum()) + 1) / len(held)


def weighted_mean(readings: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean rate of readings, and its error: infinite with one reading.

    Args:
        readings: At least one: step, rate and its standard error.

    Returns:
        m and SE.
    """
    _, x, se = np.asarray(readings).T
    mean, total = np.average(x, weights=se**-2), sum(se**-2)
    if len(x) == 1:
        return float(mean), math.inf
    spread = sum(((x - mean) / se) ** 2) / (len(x) - 1)
    return float(mean), math.sqrt(max(1.0, spread) / total)


def _half_life(rate: float) -> float:
    """Steps until half of the entropy is gone; infinite where it does not fall."""
    return math.log(2) / -rate if rate < 0 else math.inf


def _left(value: float, low: float, high: float) -> str:
    """The half-life in words, where entropy falls."""
    if value == math.inf:
        return ""
    ends = f"{low:.0f} to {high:.0f}" if high < math.inf else f"{low:.0f} or more"
    return f" At this rate half of it is gone in about {value:.0f} steps ({ends})."


def find_change_point(
    values: Sequence[float], errors: Sequence[float], level: float
) -> tuple[int, float] | None:
    """The most likely change in the mean of readings.

    Args:
        values: Readings in the order they came.
        errors: Their standard errors, positive.
        level: The level of the test.

    Returns:
        Number of readings before it, and the p-value of no change, an upper bound where that is
        enough; None with fewer than five readings.
    """
    x, w = np.asarray(values, dtype=float), np.asarray(errors, dtype=float) ** -2.0
    n = len(x)
    if n <= 2 * MIN_SIDE:
        return None
    places = np.arange(max(MIN_SIDE, n - WINDOW), n - MIN_SIDE + 1)
    (squares,) = _statistics(x[None], w, places)
    k = int(np.argmax(squares))
    largest = float(squares[k])
    single = 2 * float(stdtr(n - 2, -math.sqrt(largest)))
    p = min(1.0, len(places) * single)  # Bonferroni's bound
    if single <= level and p > min(level, 1 / (1 + DRAWS)):
        noise = np.random.default_rng(n).normal(size=(DRAWS, n)) / np.sqrt(w)
        above = int((_statistics(noise, w, places).max(1) >= largest).sum())
        p = min(p, (1 + above) / (1 + DRAWS))
    return int(places[k]), p


def _statistics(x: np.ndarray, w: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(runs, splits) t_k²."""
    sums, moments = np.cumsum(w), np.cumsum(w * x, axis=1)
    before, after = sums[places - 1], sums[-1] - sums[places - 1]
    left = moments[:, places - 1]
    between = ((moments[:, -1:] - left) / after - left / before) ** 2 / (1 / before + 1 / after)
    centred = x - moments[:, -1:] / sums[-1]
    within = (w * centred**2).sum(1, keepdims=True) - between
    return between / np.maximum(_SMALLEST_SCALE, within / (x.shape[1] - 2))
