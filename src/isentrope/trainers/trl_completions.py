"""The parquet files of TRL's `log_completions`: completions/completions_00010.parquet.

They hold texts, not token ids: prompt and completion as they were logged, without special tokens,
one column per reward function, and the advantage. Reading them encodes the texts again, which need
not give the tokens that were drawn, and puts the end token back.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompts import as_prompts, runs_of
from isentrope.system.reading import read_arrow, read_schema

NEEDED = {"step", "prompt", "completion", "advantage"}


def is_trl_completions(path: str | Path) -> bool:
    """Whether a parquet file has the columns that TRL logs.

    Args:
        path: A parquet file.

    Returns:
        True if it has.
    """
    return set(read_schema(path).names) >= NEEDED


def read_trl_completions(
    policy: Policy, path: str | Path, max_new_tokens: int | None = None
) -> Rollouts:
    """Read the completions of one training step as rollouts.

    Consecutive rows of one prompt are one group. The rewards are those of the reward function
    where there is one; several are combined by weights that the file does not hold, and only
    their advantage is known.

    Args:
        policy: Encodes the texts.
        path: A parquet file that TRL wrote.
        max_new_tokens: `max_completion_length` of the training: completions of that many tokens
            were cut and get no end token. None: every completion gets one.

    Returns:
        n sequences with advantages, and with rewards where they are known.

    Raises:
        ValueError: If the file holds several steps, a completion has several turns, or the policy
            has no tokenizer.
    """
    if policy.tokenizer is None:
        raise ValueError(f"{path} holds texts, but the policy has no tokenizer to encode them.")
    table = pd.DataFrame(read_arrow(path).to_pydict())
    if table["step"].nunique() != 1:
        raise ValueError(
            f"{path} holds {table['step'].nunique()} training steps: the update batch is the "
            "completions of one step."
        )
    prompts = as_prompts(policy, table["prompt"].tolist())
    rewards = [c for c in table if c not in NEEDED and pd.api.types.is_float_dtype(table[c])]
    texts = [_text(value, i, path) for i, value in enumerate(table["completion"])]
    return rollouts_of(
        prompts,
        runs_of(prompts),
        response_ids=[encoded(policy, text, max_new_tokens) for text in texts],
        rewards=torch.tensor(table[rewards[0]].to_numpy()) if len(rewards) == 1 else None,
        advantages=torch.tensor(table["advantage"].to_numpy()),
        response_texts=texts,
        max_new_tokens=max_new_tokens,
    )


def _text(completion: Any, row: int, path: str | Path) -> str:
    if isinstance(completion, str):
        return completion
    if len(completion) != 1 or not isinstance(completion[0].get("content"), str):
        raise ValueError(
            f"Completion {row} of {path} has {len(completion)} turns: which of its tokens the "
            "policy drew is not known from texts. Write a jsonl with response_ids and "
            "response_mask."
        )
    return completion[0]["content"]


def encoded(policy: Policy, text: str, max_new_tokens: int | None) -> torch.Tensor:
    """The tokens of a response, with the end token unless it was cut."""
    ids = list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    if max_new_tokens is not None and len(ids) >= max_new_tokens:
        return torch.tensor(ids[:max_new_tokens])
    end = [] if policy.eos_token_id is None else [policy.eos_token_id]
    return torch.tensor([*ids, *end])
