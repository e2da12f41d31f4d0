"""The jsonl files of verl's `trainer.rollout_data_dir`: one per step, 21.jsonl.

A line has the texts input and output, decoded without special tokens, the reference gts, the score,
the step, and what the reward function returned beside. Token ids and log-probabilities are not
there. A prompt is found in the data set by its text, which gives its tokens with the chat
template's. A response is encoded again, which need not give the tokens that were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompts import PromptLike, as_prompts, runs_of
from isentrope.system.errors import FileError
from isentrope.system.reading import read_json_lines, require_types
from isentrope.trainers.trl_completions import encoded

_CURE = "Give a file that verl wrote to trainer.rollout_data_dir."


class _Line(BaseModel):
    input: str
    output: str
    score: float
    step: int


def is_verl_dump(path: str | Path) -> bool:
    """Whether a jsonl file has the texts of a dump of verl.

    Args:
        path: A jsonl file.

    Returns:
        True if its first line has.
    """
    rows = [row for _, row in read_json_lines(path)[:1]]
    return any(isinstance(row, dict) and {"input", "output"} <= row.keys() for row in rows)


def read_verl_dump(
    policy: Policy,
    path: str | Path,
    prompts: Sequence[PromptLike],
    max_new_tokens: int | None = None,
) -> Rollouts:
    """Read the responses of one training step as rollouts, those to one prompt as one group.

    Args:
        policy: Encodes the texts.
        path: A jsonl file that verl wrote.
        prompts: The data set that they were drawn from.
        max_new_tokens: `data.max_response_length`: responses of that many tokens were cut and get
            no end token.

    Returns:
        n sequences with rewards, in the order of their prompts.

    Raises:
        FileError: If a line lacks a field, belongs to another step, or its texts are not those of
            the data set and of the tokenizer.
    """
    rows = [(f"{path}, line {i}", row) for i, row in read_json_lines(path, _CURE)]
    for where, row in rows:
        require_types(where, row, _Line, _CURE)

    def text(ids: Any) -> str:
        return policy.tokenizer.decode(ids, skip_special_tokens=True)

    known = {text(prompt.token_ids): prompt for prompt in as_prompts(policy, prompts)}
    first: dict[str, int] = {}
    for number, (where, row) in enumerate(rows):
        if row["step"] != rows[0][1]["step"]:
            raise FileError(path, f"{where} is of another step than the first: {_CURE}")
        if row["input"] not in known:
            raise FileError(
                path,
                f"{where}: no prompt of batch_config.dataset_name, in the chat template of the "
                "checkpoint, has the text of its input, which verl writes without special tokens. "
                "Give the data set that training drew from.",
            )
        first.setdefault(row["input"], number)
    rows.sort(key=lambda row: first[row[1]["input"]])
    responses = [encoded(policy, row["output"], max_new_tokens) for _, row in rows]
    for (where, row), ids in zip(rows, responses, strict=True):
        if text(ids) != row["output"]:
            raise FileError(
                path,
                f"{where}: its output encoded and decoded again is another text, so its tokens are "
                "not known. Write a jsonl with prompt_ids and response_ids.",
            )
    drawn_to = [known[row["input"]] for _, row in rows]
    return rollouts_of(
        drawn_to,
        runs_of(drawn_to),
        response_ids=responses,
        rewards=torch.tensor([float(row["score"]) for _, row in rows]),
        response_texts=[row["output"] for _, row in rows],
        max_new_tokens=max_new_tokens,
    )
