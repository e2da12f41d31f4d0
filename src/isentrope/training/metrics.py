"""Metrics of a training step: sample means of its batch, for the log, without error bars."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.sampling.batches import UpdateBatchReport


def metrics(batch: Rollouts, report: UpdateBatchReport) -> dict[str, float]:
    """Describe an update batch.

    Args:
        batch: The kept responses, with rewards and sampler log-probabilities.
        report: Statistics of all responses drawn.

    Returns:
        The report's counts and means; `pass_rate`, the share of correct responses among all drawn,
        rejected groups included; and of the kept responses `surprisal` (nats per sequence) and
        `length` (tokens).
    """
    group_size = len(batch) / batch.n_prompts
    correct = int((cast(Tensor, batch.rewards) == 1).sum()) + group_size * report.all_right
    surprisal = -sum(float(s.sum()) for s in cast(list[Tensor], batch.sampler_logprobs))
    return {name: value for name, value in vars(report).items() if value is not None} | {
        "pass_rate": correct / (group_size * report.drawn),
        "surprisal": surprisal / len(batch),
        "length": float(batch.lengths.double().mean()),
    }
