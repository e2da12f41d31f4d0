"""What a finished training step tells: its metrics, its table of rollouts, and its replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.rollouts import Rollouts
from isentrope.training.metrics import metrics
from isentrope.training.token_record import TokenRecord, policy_ratio
from isentrope.training.update_batches import UpdateBatch


def step_metrics(batch: UpdateBatch, record: TokenRecord, eos_token_id: int) -> dict[str, float]:
    """Sample means of a step's batch, for a log; no error bars.

    Args:
        batch: The update batch.
        record: What training did with its tokens.
        eos_token_id: A response that does not end in it was cut.

    Returns:
        `reward` of all responses drawn and `reward_kept` of those of the batch, `entropy` (nats
        per token of the batch, which is filtered: the probe's is not), `surprisal` (nats per
        sequence), `length`, `truncated`, the counts of the report, and the policy ratio.
    """
    rollouts = batch.rollouts
    found = metrics(rollouts, batch.report)
    cut = [int(r[-1]) != eos_token_id for r in rollouts.response_ids]
    return {
        "reward": found.pop("mean_reward"),
        "reward_kept": float(cast(Tensor, rollouts.rewards).mean()),
        "entropy": float(torch.cat(record.entropies).mean()),
        "truncated": sum(cut) / len(cut),
        **found,
        **policy_ratio(rollouts, record),
    }


def replayable(rollouts: Rollouts, record: TokenRecord) -> Rollouts:
    """The batch with the weights that its tokens had in the gradient.

    Args:
        rollouts: The batch.
        record: What training did with its tokens.

    Returns:
        A copy with `token_weights`, for `optimizer_step(..., objective="recorded")`.
    """
    return rollouts.with_columns(token_weights=record.weights)


def write_table(path: Path, step: int, batch: UpdateBatch, record: TokenRecord) -> Path:
    """Write the rollouts of a step, one row a response, whole or not at all.

    Args:
        path: A parquet file.
        step: The step.
        batch: Its update batch.
        record: What training did with its tokens.

    Returns:
        The path.
    """
    import pandas as pd

    U = batch.rollouts
    columns: Mapping[str, Any] = {
        "step": [step] * len(U),
        "prompt_key": U.prompt_keys,
        "prompt_index": U.prompt_index.tolist(),
        "difficulty": batch.difficulty,
        "response": U.response_texts,
        "reference": U.references,
        "reward": cast(Tensor, U.rewards).tolist(),
        "advantage": cast(Tensor, U.advantages).tolist(),
        "length": U.lengths.tolist(),
        "prompt_ids": [x.tolist() for x in U.prompt_ids],
        "response_ids": [x.tolist() for x in U.response_ids],
        "sampler_logprobs": [x.tolist() for x in cast(list[Tensor], U.sampler_logprobs)],
        "logprobs": [x.tolist() for x in record.logprobs],
        "entropies": [x.tolist() for x in record.entropies],
        "token_weights": [x.tolist() for x in record.weights],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    pd.DataFrame(columns).to_parquet(partial)
    return partial.replace(path)
