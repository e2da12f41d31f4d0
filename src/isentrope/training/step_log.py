"""What is logged of a finished training step: its metrics, and its table of rollouts."""

from collections.abc import Collection
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.recording.token_record import TokenRecord, policy_ratio
from isentrope.sampling.batches import UpdateBatchReport
from isentrope.training.update_batches import UpdateBatch


def step_metrics(
    batch: UpdateBatch, record: TokenRecord, eos_token_ids: Collection[int]
) -> dict[str, float]:
    """Sample means of a step's batch, for a log; no error bars.

    Args:
        batch: The update batch.
        record: Log-probabilities, entropies and weights of its tokens in training.
        eos_token_ids: A response that ends with none of them was truncated.

    Returns:
        `reward` of all responses drawn and `reward_kept` of those in the batch, `entropy` (nats
        per token of the batch, which is filtered: the probe's is not), `surprisal` (nats per
        sequence), `length`, `truncated`, the counts of the report, and the policy ratio.
    """
    rollouts = batch.rollouts
    means = metrics(rollouts, batch.report)
    truncated = [int(r[-1]) not in eos_token_ids for r in rollouts.response_ids]
    return {
        "reward": means.pop("mean_reward"),
        "reward_kept": float(cast(Tensor, rollouts.rewards).mean()),
        "entropy": float(torch.cat(record.entropies).mean()),
        "truncated": sum(truncated) / len(truncated),
        **means,
        **policy_ratio(rollouts, record),
    }


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


def rollout_table(step: int, batch: UpdateBatch, record: TokenRecord) -> pd.DataFrame:
    """The rollouts of a step, one row per response."""
    U = batch.rollouts
    columns: dict[str, Any] = {
        "step": [step] * len(U),
        "prompt_key": U.prompt_keys,
        "prompt_index": U.prompt_index.tolist(),
        "difficulty": batch.difficulty,
        "response": U.response_texts,
        "reference": U.references,
        "reward": cast(Tensor, U.rewards).tolist(),
        "advantage": cast(Tensor, U.advantages).tolist(),
        "length": U.lengths.tolist(),
    }
    of_tokens = {
        "prompt_ids": U.prompt_ids,
        "response_ids": U.response_ids,
        "sampler_logprobs": U.sampler_logprobs,
        "logprobs": record.logprobs,
        "entropies": record.entropies,
        "token_weights": record.weights,
        "entropy_weights": record.entropy_weights,
    }
    for name, rows in of_tokens.items():
        if rows is not None:
            columns[name] = [row.tolist() for row in rows]
    return pd.DataFrame(columns)
