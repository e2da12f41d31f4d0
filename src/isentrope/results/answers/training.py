"""What `isentrope train` answers: what entropy and reward of its log changed by.

The reading x of a step is the mean of its own responses. Its noise is that of other prompts and
other responses at every step, so neighbouring steps show it, whatever the trend:

    σ² = ½ mean (x_{t+1} − x_t)²        SE² = σ²/k of the mean of k steps

with ⅔ of as many degrees of freedom as there are differences (von Neumann et al. 1941, "The mean
square successive difference", Ann. Math. Stat. 12). The means of the first and the last k steps are
compared, k a tenth of all and at least five.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Sentence, from_to, has_interval, short, with_interval
from isentrope.results.answers.evaluate import TRAINING

_LOGGED = {"entropy": ("entropy", "nats per token"), "reward": ("reward", "")}
"""Words and unit of each mean over a step's own responses."""
LEAST_STEPS = 6
"""Steps from which on there is an interval: two neighbours twice at both ends."""
USUAL_STEPS = 5
"""Steps of each end of a log of fewer than ten times as many."""


def training_sentence(steps: Sequence[Mapping[str, Any]]) -> Iterator[Sentence]:
    """Entropy and reward of the first and of the last steps, and the change, with intervals.

    Args:
        steps: The lines of a training log, in order.

    Yields:
        One sentence; none where fewer than two steps logged one of them.
    """
    parts: list[str] = []
    count = 0
    for key, (words, unit) in _LOGGED.items():
        logged = (step.get(key) for step in steps)
        values = [float(x) for x in logged if x is not None and math.isfinite(x)]
        if len(values) < 2:
            continue
        count = max(count, len(values))
        if len(values) >= LEAST_STEPS:
            parts.append(_change(values, words, unit))
    if parts:
        yield Sentence(
            f"{'. '.join(parts)}. Intervals are by how neighbouring steps differ.",
            question=TRAINING,
        )
    elif count:
        text = (
            f"What entropy and reward changed by is not known: the log has {count} steps, and "
            f"{LEAST_STEPS} are the fewest that show their noise."
        )
        yield Sentence(text, "doubt", TRAINING)


def _change(values: Sequence[float], words: str, unit: str) -> str:
    """From where to where a reading went, and by how much."""
    if min(values) == max(values):
        return f"The {words} of all {len(values)} steps is {short(values[0])} {unit}".rstrip()
    count = min(max(USUAL_STEPS, len(values) // 10), len(values) // 2)
    ends = np.array(values[:count]), np.array(values[-count:])
    levels = [_estimate(end.mean(), np.diff(end), count, unit) for end in ends]
    differences = np.concatenate([np.diff(end) for end in ends])
    change = _estimate(ends[1].mean() - ends[0].mean(), differences, count / 2, unit)
    size = f"{with_interval(change)} {unit}".rstrip()
    text = f"From the first to the last {count} of {len(values)} steps {words}"
    if not has_interval(change) or change.covers(0.0):
        return f"{text} went {from_to(levels)}, a change of {size}, which may be chance"
    verb = "fell" if change.value < 0 else "rose"
    return f"{text} {verb} {from_to(levels)}, a change of {size}"


def _estimate(value: float, differences: np.ndarray, count: float, unit: str) -> Estimate:
    """A mean over so many steps, with the error that differences of neighbours give."""
    variance = float(np.square(differences).mean()) / 2
    return Estimate.from_standard_error(
        float(value),
        math.sqrt(variance / count),
        len(differences) + 1,
        degrees_of_freedom=2 * len(differences) / 3,
        unit=unit,
        method="successive differences",
    )
