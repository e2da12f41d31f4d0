"""What an evaluation estimates, and the k of pass@k."""

from collections.abc import Sequence
from dataclasses import dataclass

from isentrope.nouns.choices import ALL_METRICS, Metric
from isentrope.system.one_line import changed_fields, one_line


@dataclass(frozen=True)
class EvaluationOptions:
    """What is estimated from the responses.

    Attributes:
        ks: The k of pass@k, each at most `samples_per_prompt`; None for 1, 2, 4, ...
        metrics: Metrics to estimate.
        right_above: A response is correct if its reward is above this.
        batch_size: Sequences at a time; changes nothing but speed and memory.
    """

    ks: Sequence[int] | None = None
    metrics: Sequence[Metric] = ALL_METRICS
    right_above: float = 0.5
    batch_size: int = 64

    def __repr__(self) -> str:
        return one_line(self, *changed_fields(self))


def powers_of_two(n: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to n."""
    return tuple(2**i for i in range(n.bit_length()))


def require_tries(ks: Sequence[int], samples_per_prompt: int) -> None:
    """Refuse pass@k where there are fewer than k responses to a prompt.

    Raises:
        ValueError: Naming the k, or if one is below 1 or given twice.
    """
    if min(ks) < 1 or len(set(ks)) < len(ks):
        raise ValueError(f"the k of pass@k are different whole numbers from 1 on, not {list(ks)}")
    if max(ks) > samples_per_prompt:
        raise ValueError(
            f"pass@{max(ks)} needs at least {max(ks)} responses to every prompt, and "
            f"samples_per_prompt is {samples_per_prompt}: draw more, or choose a smaller k"
        )
