"""Responses as a table, one row each, from which every metric is computed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pandas as pd

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.token_statistics import Scores
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.tasks.task import FormattedTask, Task

TOKENS = ("response_ids", "logprobs", "entropies")
"""Columns that hold a list per response, one entry per token."""


def make_records(
    rollouts: Rollouts,
    task: Task,
    scores: Scores | None,
    *,
    eos_token_ids: Collection[int],
    right_above: float = 0.5,
    decode: Callable[[list[int]], str] | None = None,
) -> pd.DataFrame:
    """Reward responses and collect them, with their scores, in a table.

    Args:
        rollouts: n responses with texts.
        task: Rewards them; also judges their format, if it is a `FormattedTask`.
        scores: Scores of the same responses; None where no metric needs them.
        eos_token_ids: Tokens that end a response.
        right_above: A response is correct if its reward is above this.
        decode: Makes the text of a prompt from its ids; None for no text.

    Returns:
        Columns: prompt (number of the prompt draw), sample, key, reference, prompt_text, text,
        length (tokens, EOS counted), truncated (no EOS), reward, right, format (None where the
        task has none), entropy and surprisal (Σ H_k and −Σ s_k, nats), and `TOKENS`.
    """
    rollouts = with_rewards(rollouts, task)
    assert rollouts.rewards is not None
    n, texts = len(rollouts), rollouts.response_texts or []
    prompt = pd.Series(rollouts.prompt_index.tolist())
    format_of = task.format_reward if isinstance(task, FormattedTask) else None
    columns: dict[str, Any] = {
        "prompt": prompt,
        "sample": prompt.groupby(prompt).cumcount(),
        "key": rollouts.prompt_keys or [None] * n,
        "reference": rollouts.references or [None] * n,
        "prompt_text": [decode(p.tolist()) if decode else None for p in rollouts.prompt_ids],
        "text": texts,
        "length": rollouts.lengths.tolist(),
        "truncated": [int(r[-1]) not in eos_token_ids for r in rollouts.response_ids],
        "reward": rollouts.rewards.tolist(),
        "right": (rollouts.rewards > right_above).tolist(),
        "format": pd.array([format_of(x) if format_of else None for x in texts], dtype="Float64"),
        "response_ids": [r.numpy() for r in rollouts.response_ids],
    }
    if scores is not None:
        both = (scores.logprobs, scores.entropies)
        logprobs, entropies = (
            [row[:length].numpy() for row, length in zip(padded, columns["length"], strict=True)]
            for padded in both
        )
        # summed over its own tokens: a sum that padding cannot change
        columns["entropy"] = [float(h.sum()) for h in entropies]
        columns["surprisal"] = [-float(s.sum()) for s in logprobs]
        columns |= {"logprobs": logprobs, "entropies": entropies}
    return pd.DataFrame(columns)
