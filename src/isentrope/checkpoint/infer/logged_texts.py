"""Files in which trainers log the texts of a step: what TRL's `log_completions` writes, and verl.

    TRL     completions/completions_00010.parquet: prompt and completion, one column per reward
            function, and the advantage
    verl    trainer.rollout_data_dir, 21.jsonl: input and output, the score, the step, and what the
            reward function returned beside

They hold no token ids and no log-probabilities. Texts are logged without special tokens, so a
prompt of verl is found in the data set by its text, which gives its tokens with those of the chat
template. A response is encoded again, which need not give the tokens that were drawn, and gets its
end token back.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel

from isentrope.checkpoint.infer.settings import first_row
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompt import name_prompts, with_template
from isentrope.sampling.prompts import as_prompts, runs_of
from isentrope.sampling.tasks.task import Task
from isentrope.system.errors import FileError
from isentrope.system.file_contents import read_arrow
from isentrope.system.reading import read_json_lines, require_types

OF_TEXTS = (
    "this is a trainer's log of texts, which are encoded again: tokens may differ from those that "
    "were drawn, and each completion shorter than sampling.max_new_tokens gets its end token. "
    "A log does not show which tokens an environment or a tool inserted (env_mask of a "
    "rollout_func): here they count as drawn. Where training had such tokens, give a jsonl with "
    "response_ids and response_mask, or the recorded batch (record=True)."
)
"""What a log cannot show."""

_TRL = {"step", "prompt", "completion", "advantage"}
_VERL = {"input", "output"}


class _Line(BaseModel):
    """What a line of verl's must have."""

    input: str
    output: str
    score: float
    step: int


def are_logged_texts(path: str | Path) -> bool:
    """Whether a file has the columns that TRL or verl logs.

    Args:
        path: A parquet or jsonl file.

    Returns:
        True if it has.
    """
    columns = first_row(Path(path)).keys()
    return columns >= _TRL or columns >= _VERL


def read_logged_texts(
    policy: Policy,
    path: str | Path,
    task: Callable[[], Task],
    max_new_tokens: int | None = None,
    template: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Read the responses of one training step as rollouts.

    Consecutive rows of one prompt are one group in TRL's file, and all of one prompt in verl's. The
    rewards of TRL are those of the reward function where there is one; several are combined by
    weights that the file does not hold, and only their advantage is known.

    Args:
        policy: Encodes the texts.
        path: A file that TRL or verl wrote.
        task: Has the prompts that verl drew from.
        max_new_tokens: `max_completion_length` of TRL, `data.max_response_length` of verl:
            responses of that many tokens were cut and get no end token. None: every response gets
            one.
        template: `chat_template_kwargs` of TRL, for prompts that are logged as conversations.

    Returns:
        n sequences, with advantages (TRL) and with rewards where they are known.

    Raises:
        FileError: If a line of verl's lacks a field, or prompts are not those of the task.
        ValueError: If the file holds several steps, a completion has several turns or is not the
            text of its tokens, or the policy has no tokenizer.
    """
    if policy.tokenizer is None:
        raise ValueError(f"{path} holds texts, but the policy has no tokenizer to encode them.")
    if by_trl := Path(path).suffix == ".parquet":
        table = pd.DataFrame(read_arrow(path).to_pydict())
    else:
        table = _read_verl_lines(policy, path, task())
    if table["step"].nunique() != 1:
        raise ValueError(
            f"{path} holds {table['step'].nunique()} training steps: the update batch is the "
            "responses of one step."
        )
    named_prompts = name_prompts(table["prompt"].tolist())
    prompts = as_prompts(policy, with_template(named_prompts, template))
    rewards = [
        column
        for column in table
        if column not in _TRL and pd.api.types.is_float_dtype(table[column])
    ]
    texts = [_read_text(value, i, path) for i, value in enumerate(table["completion"])]
    return rollouts_of(
        policy,
        prompts,
        runs_of(prompts),
        response_ids=_encode_responses(policy, texts, max_new_tokens, path),
        rewards=torch.tensor(table[rewards[0]].to_numpy()) if len(rewards) == 1 else None,
        advantages=torch.tensor(table["advantage"].to_numpy()) if by_trl else None,
        response_texts=texts,
        max_new_tokens=max_new_tokens,
    )


def _read_verl_lines(policy: Policy, path: str | Path, task: Task) -> pd.DataFrame:
    """The lines of verl by TRL's names, prompt by prompt, with the prompts of the task."""
    cure = "Give a file that verl wrote to trainer.rollout_data_dir, and the data set of training."
    rows = [row for _, row in read_json_lines(path, cure)]
    require_types(path, rows, list[_Line], cure)
    table = pd.DataFrame(rows)[[*_Line.model_fields]].sort_values("input", kind="stable")
    table = table.rename(columns={"input": "prompt", "output": "completion"})
    prompts = {_decode(policy, p.token_ids): p for p in as_prompts(policy, task.prompts)}
    if unknown := {*table["prompt"]} - prompts.keys():
        raise FileError(
            f"{path}: no prompt of its task (batch_config.dataset_name or U_dataset_name, and the "
            f"split), in the checkpoint's chat template, has the text {min(unknown)!r}. {cure}",
        )
    if (sizes := table["prompt"].value_counts()).nunique() > 1:
        raise FileError(
            f"{path}: prompts have {sizes.min()} to {sizes.max()} responses, so some are in the "
            "batch twice, and which responses are one group is not known.",
        )
    return table.assign(prompt=table["prompt"].map(prompts), score=table["score"].astype(float))


def _read_text(completion: Any, row: int, path: str | Path) -> str:
    if isinstance(completion, str):
        return completion
    if len(completion) != 1 or not isinstance(completion[0].get("content"), str):
        raise ValueError(
            f"Completion {row} of {path} has {len(completion)} turns: which of its tokens the "
            "policy drew is not known from texts. Write a jsonl with response_ids and "
            "response_mask."
        )
    return completion[0]["content"]


def _encode_responses(
    policy: Policy, texts: list[str], max_new_tokens: int | None, path: str | Path
) -> list[torch.Tensor]:
    names = [f"Completion {i} of {path}" for i in range(len(texts))]
    responses = []
    for text, token_ids in zip(texts, encode_texts(policy, texts, names), strict=True):
        ids = token_ids[:max_new_tokens]
        if _decode(policy, ids) != text:
            raise ValueError(
                f"{path}: {text!r} encoded and decoded again is another text, so its tokens are "
                "not known. Write a jsonl with prompt_ids and response_ids."
            )
        if len(ids) != max_new_tokens and policy.eos_token_id is not None:
            ids.append(policy.eos_token_id)
        responses.append(torch.tensor(ids))
    return responses


def _decode(policy: Policy, ids: Any) -> str:
    return policy.tokenizer.decode(ids, skip_special_tokens=True)
