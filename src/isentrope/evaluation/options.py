"""What an evaluation estimates, and whether a task has it, and the k of pass@k."""

from collections.abc import Sequence
from dataclasses import dataclass

from isentrope.nouns.choices import ALL_METRICS, Metric
from isentrope.sampling.tasks.task import FormattedTask, ReadsAnswers, Task
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


def require_format(task: Task, metrics: Sequence[str], name: str) -> None:
    """Refuse the metrics `format` and `unread` for a task without a format or an answer.

    Raises:
        ValueError: If a metric is given that the task does not have.
    """
    if "format" in metrics and not isinstance(task, FormattedTask):
        raise ValueError(
            f"The task {name!r} has no format of its responses: omit 'format' from "
            "evaluation.metrics, or set it to null for all metrics of the task."
        )
    if "unread" in metrics and not isinstance(task, ReadsAnswers):
        raise ValueError(
            f"The task {name!r} does not say which answers it can read: omit 'unread' from "
            "evaluation.metrics, or set it to null for all metrics of the task."
        )


def require_subset(n: int | None, size: int) -> None:
    """Refuse more prompts than a task has.

    Args:
        n: How many are chosen; None for all.
        size: How many it has.

    Raises:
        ValueError: If n is below 1 or above that.
    """
    if n is not None and not 1 <= n <= size:
        raise ValueError(f"n_prompts={n} of {size} prompts: choose 1 to {size}, or null for all.")
