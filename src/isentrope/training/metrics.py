"""What a training step tells of itself: sample means of its batch, for a log; no error bars."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from isentrope.rollouts import Rollouts
from isentrope.sampling.batches import UpdateBatchReport


def metrics(batch: Rollouts, report: UpdateBatchReport) -> dict[str, float]:
    """Describe an update batch.

    Args:
        batch: What was kept, with rewards and sampler log-probabilities.
        report: What was drawn.

    Returns:
        The report's counts and means; `pass_rate`, right responses of all drawn, rejected groups
        counted; and of the kept responses `surprisal` (nats per sequence) and `length` (tokens).
    """
    group_size = len(batch) / batch.n_prompts
    right = int((cast(Tensor, batch.rewards) == 1).sum()) + group_size * report.all_right
    surprisal = -sum(float(s.sum()) for s in cast(list[Tensor], batch.sampler_logprobs))
    return {name: value for name, value in vars(report).items() if value is not None} | {
        "pass_rate": right / (group_size * report.drawn),
        "surprisal": surprisal / len(batch),
        "length": float(batch.lengths.double().mean()),
    }
