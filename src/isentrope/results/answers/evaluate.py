"""What `isentrope evaluate` answers: how good a policy is and how uncertain, from what to what."""

from collections.abc import Iterator, Mapping, Sequence

from isentrope.nouns.estimate import Estimate
from isentrope.results.answers.blocks import Sentence, from_to, with_interval
from isentrope.system.formatting import listed

TRAINING = "Training"
_METRICS = {"pass_at_1": "pass@1", "entropy_per_token": "entropy per token"}

Metrics = Mapping[str, Estimate | None]
"""By name; None where a metric has no value."""


def evaluation_sentence(checkpoints: Sequence[tuple[str, Metrics]]) -> Iterator[Sentence]:
    """Accuracy and entropy of sampled responses to all prompts, from the first to the last.

    Args:
        checkpoints: Name and metrics of each, in order.

    Yields:
        One sentence; none without a metric.
    """
    parts: list[str] = []
    for metric, words in _METRICS.items():
        estimates = [e for _, metrics in checkpoints if (e := metrics.get(metric)) is not None]
        if len(estimates) > 1:
            parts.append(f"{words} went {from_to(estimates)}")
        elif estimates:
            parts.append(f"{words} is {with_interval(estimates[0])}")
    if not parts:
        return
    first = checkpoints[0][0]
    last = checkpoints[-1][0]
    place = f"From {first} to {last}" if len(checkpoints) > 1 else f"At {first}"
    yield Sentence(f"{place}, {listed(parts)}.", question=TRAINING)
