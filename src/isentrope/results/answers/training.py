"""What `isentrope train` answers: entropy and reward from the first step of its log to the last."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isentrope.results.answers.blocks import Sentence, short
from isentrope.results.answers.evaluate import TRAINING

_LOGGED = {"entropy": ("entropy", " nats per token"), "reward": ("reward", "")}
"""Words and unit of each mean over a step's own responses."""


def training_sentence(steps: Sequence[Mapping[str, Any]]) -> Iterator[Sentence]:
    """Entropy and reward of the responses of the first and of the last step.

    Args:
        steps: The lines of a training log, in order.

    Yields:
        One sentence; none where fewer than two steps logged one of them.
    """
    if not steps:
        return
    first = steps[0]
    last = steps[-1]
    parts: list[str] = []
    for key, (words, unit) in _LOGGED.items():
        before = first.get(key)
        after = last.get(key)
        if before is None or after is None or not math.isfinite(change := after - before):
            continue
        if short(before) == short(after):
            parts.append(f"{words} stayed at {short(before)}{unit}")
            continue
        verb = "fell" if change < 0 else "rose"
        size = f"by {short(abs(change))}{unit}"
        parts.append(f"{words} {verb} from {short(before)} to {short(after)}, {size}")
    if len(steps) > 1 and parts:
        yield Sentence(
            f"From step {first['step']} to step {last['step']}, {', and '.join(parts)}; each is "
            "the mean of one step's responses, without an interval.",
            question=TRAINING,
        )
