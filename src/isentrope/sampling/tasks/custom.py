"""Responses of a user's own, one JSON object per line; `prompt_file` reads prompts alone.

Prompts:    {"prompt": "2+2=", "reference": "4", "key": "mine/0"}       reference, key optional;
            with "group": "sums" in every line results are broken down by it, and with
            "response": "4" they are demonstrations too; other columns go to reward functions.
            Of a batch of rollouts (with "response_ids") each prompt counts once
Responses:  the same with "response": "4", and "reward", "advantage", "finished" and "step" optional
            (the training step taken on them, from 1, which is compared with the checkpoint's)

Instead of a text, "messages" (or a list as "prompt") gives a conversation for the tokenizer's chat
template, and "prompt_ids" and "response_ids" give token ids. With "response_ids" a line may hold
one number per token: "response_mask" (0 where the policy did not draw the token, such as a tool's
output), "sampler_logprobs", "token_weights" and "entropy_weights".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompt import prompt_of_row, with_template
from isentrope.sampling.prompts import as_prompts, runs_of
from isentrope.sampling.tasks.lines import (
    PER_TOKEN,
    ResponseLine,
    complete_column,
    read_rows,
    require_responses,
)


def read_responses(
    policy: Policy, path: str | Path, template: Mapping[str, Any] | None = None
) -> Rollouts:
    """Read hand-written responses as rollouts.

    A response given as text gets the policy's EOS, unless its line says "finished": false;
    responses given as ids are taken as they are. Consecutive lines of one prompt are one group.

    Args:
        policy: Encodes texts.
        path: A jsonl file.
        template: Arguments of the chat template for its conversations.

    Returns:
        n sequences, with the columns that the lines have.

    Raises:
        ValueError: If a line is not understood, some lines lack a field that others have, or
            texts are given without a tokenizer.
    """
    rows = read_rows(Path(path), ResponseLine)
    require_responses(path, rows)
    named_prompts = [prompt_of_row(row, place) for place, row in rows]
    prompts = as_prompts(policy, with_template(named_prompts, template))
    responses = [torch.tensor(_response_ids(policy, row, place)) for place, row in rows]
    columns: dict[str, Any] = {name: complete_column(rows, name) for name in PER_TOKEN}
    columns |= {f"{name}s": complete_column(rows, name) for name in ("reward", "advantage")}
    return rollouts_of(policy, prompts, runs_of(prompts), responses, **columns)


def _response_ids(policy: Policy, row: dict[str, Any], place: str) -> list[int]:
    if "response_ids" in row:
        return row["response_ids"]
    if policy.tokenizer is None:
        raise ValueError(f"{place} is text, but the policy has no tokenizer: give 'response_ids'.")
    (ids,) = encode_texts(policy, [row["response"]], [f"{place}: the response"])
    ended = bool(ids) and ids[-1] in policy.eos_token_ids
    if row.get("finished", True) and policy.eos_token_id is not None and not ended:
        ids.append(policy.eos_token_id)
    return ids
