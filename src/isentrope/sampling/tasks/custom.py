"""Prompts and responses of a user's own, one JSON object per line; prompts also in parquet or csv.

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

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pyarrow
import torch
from pyarrow import parquet
from pydantic import BaseModel, Field, PositiveInt

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompts import (
    Prompt,
    PromptLike,
    as_prompts,
    name_prompts,
    runs_of,
    with_template,
)
from isentrope.sampling.tasks.task import require_probability, require_split, shuffled_epochs
from isentrope.system.files import short_digest
from isentrope.system.reading import read_json_lines, reading, require_types

_NO_COLUMNS = ("prompt", "messages", "prompt_ids", "completion", "completion_ids")
_PER_TOKEN = ("response_mask", "sampler_logprobs", "token_weights", "entropy_weights")

_Number = Annotated[float, Field(gt=-1e300, lt=1e300)]
_Name = str | _Number | None
_Id = Annotated[int, Field(ge=0, lt=2**31)]


class _PromptLine(BaseModel, extra="allow"):
    """What a line of a file of prompts may hold, and any other column."""

    prompt: str | list[dict[str, Any]] | list[_Id] = ""
    messages: list[dict[str, Any]] = []
    prompt_ids: list[_Id] = []
    reference: _Name = None
    key: _Name = None
    group: _Name = None
    response: str = ""


class _ResponseLine(_PromptLine, extra="forbid"):
    """What a line of a file of responses may hold."""

    response_ids: list[_Id] = []
    finished: bool = True
    reward: _Number | None = 0.0
    advantage: _Number = 0.0
    step: PositiveInt = 1
    response_mask: list[bool | Annotated[int, Field(ge=0, le=1)]] = []
    sampler_logprobs: list[_Number] = []
    token_weights: list[_Number] = []
    entropy_weights: list[_Number] = []


PROMPT_FIELDS = frozenset(_ResponseLine.model_fields)
"""Names in a line that are not columns for reward functions alone."""

PromptSource = str | Path | Sequence[PromptLike]
"""A file of prompts, or prompts."""


def describe_source(source: PromptSource) -> str:
    """What messages call a source of prompts."""
    return str(source) if isinstance(source, (str, Path)) else "the list of prompts"


class PromptFile:
    """A user's prompts; the reward is 1 where the response is the reference, white space aside.

    Attributes:
        prompts: In file order; prompts without a key are named by their content.
        places: The file and line of each.
    """

    def __init__(
        self, path: PromptSource, split: str = "train", *, test_share: float = 0.0
    ) -> None:
        """Read the prompts.

        Args:
            path: A file of jsonl, parquet or csv; or prompts.
            split: "train" or "test", where the file has both; else any.
            test_share: Share of the different prompts that are those of "test", the others being
                those of "train"; 0: the file has no splits.

        Raises:
            ValueError: If a line is not understood, or one of the splits would be empty.
        """
        places, prompts, responses = _read_prompts(path)
        lines = list(range(len(prompts)))
        if test_share:
            lines = _lines_of_split(prompts, split, test_share, describe_source(path))
        self.places = [places[i] for i in lines]
        self.prompts = [prompts[i] for i in lines]
        self._responses = [(places[i], responses[i]) for i in lines]

    def reward(self, response_text: str, reference: str | None) -> float:
        """1 if the response equals the reference, else 0.

        Args:
            response_text: The decoded response.
            reference: The reference of the file.

        Returns:
            0.0 or 1.0.

        Raises:
            ValueError: If the file gave no reference.
        """
        if reference is None:
            raise ValueError(
                "A prompt in the file has no reference, so its responses have no reward: add "
                "'reference' to every line, or use these prompts for E only."
            )
        return float(response_text.strip() == reference.strip())

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """The file's own responses, in passes of random order.

        Args:
            n: Number of demonstrations.
            seed: Fixes the order.

        Returns:
            (prompt, response text) pairs.

        Raises:
            ValueError: If a line has no response, or one that is not a text.
        """
        for where, response in self._responses:
            if not isinstance(response, str):
                raise ValueError(f"{where} has no text in 'response': a demonstration needs one.")
        order = shuffled_epochs(len(self.prompts), n, seed)
        return [(self.prompts[i], str(self._responses[i][1])) for i in order]


def _read_prompts(source: PromptSource) -> tuple[list[str], list[Prompt], list[Any]]:
    """Where each prompt stands, the prompts, and their own responses, or None."""
    if not isinstance(source, (str, Path)):
        prompts = name_prompts(source)
        return [f"Prompt {p.key!r}" for p in prompts], prompts, [None] * len(prompts)
    rows = _rows(Path(source), _PromptLine)
    prompts = [_prompt(row, where) for where, row in rows]
    lines = list(range(len(prompts)))
    if all("response_ids" in row for _, row in rows):  # a line per response
        first = {prompts[i].content: i for i in reversed(lines)}
        lines = [i for i in lines if first[prompts[i].content] == i]
    places = [rows[i][0] for i in lines]
    responses = [rows[i][1].get("response") for i in lines]
    return places, [prompts[i] for i in lines], responses


def _lines_of_split(prompts: list[Prompt], split: str, test_share: float, path: str) -> list[int]:
    """Lines of the prompts of a split; equal prompts are of one split, whatever their order."""
    require_probability("test_share", test_share)
    require_split(split, f"{path} with test_share")
    different = sorted({p.content for p in prompts}, key=lambda text: short_digest(text, 8))
    size = round(test_share * len(different))
    if not 0 < size < len(different):
        raise ValueError(
            f"{path} has {len(different)} different prompts, too few to be shared between E and U: "
            "give more, or a file for each (batch_config.dataset_path and U_dataset_path)."
        )
    test = set(different[:size])
    return [i for i, p in enumerate(prompts) if (p.content in test) == (split == "test")]


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
    rows = _rows(Path(path), _ResponseLine)
    named = [_prompt(row, where) for where, row in rows]
    prompts = as_prompts(policy, with_template(named, template))
    responses = [torch.tensor(_response_ids(policy, row, where)) for where, row in rows]
    columns: dict[str, Any] = {name: _complete(rows, name) for name in _PER_TOKEN}
    columns |= {f"{name}s": _complete(rows, name) for name in ("reward", "advantage")}
    if len(steps := {row.get("step") for _, row in rows}) > 1:
        raise ValueError(
            f"{path} holds the responses of {len(steps)} training steps: an update batch is the "
            "responses of one step."
        )
    return rollouts_of(policy, prompts, runs_of(prompts), responses, **columns)


def _complete(rows: list[tuple[str, dict[str, Any]]], name: str) -> list[Any] | None:
    """A field of every line; None if no line has it."""
    where = [place for place, row in rows if name in row]
    if where and len(where) < len(rows):
        missing = next(place for place, row in rows if name not in row)
        raise ValueError(f"{missing} has no {name!r}, and {where[0]} has one: give all or none.")
    return [row[name] for _, row in rows] if where else None


def _rows(path: Path, kind: type[BaseModel]) -> list[tuple[str, dict[str, Any]]]:
    rows = [(f"{path}, line {i}", row) for i, row in _lines(path)]
    for where, row in rows:
        unknown = set(row) - set(kind.model_fields) if isinstance(row, dict) else ()
        if kind.model_config.get("extra") == "forbid" and unknown:
            raise ValueError(
                f"{where} has {min(unknown)!r}, which is not a field of a response: correct "
                f"the name (fields are {', '.join(kind.model_fields)}), or omit it (columns of a "
                "reward function stand in the file of its prompts, dataset_path)."
            )
        require_types(where, row, kind, "Correct the line.")
    if not rows:
        raise ValueError(f"The dataset is empty: {path} has no lines.")
    return rows


def _lines(path: Path) -> list[tuple[int, Any]]:
    """The rows of a file and their numbers from 1, whatever its format."""
    cure = "Give a file of jsonl, parquet or csv."
    if path.suffix == ".parquet":
        with reading(path, cure):
            return list(enumerate(parquet.read_table(path).to_pylist(), 1))
    if path.suffix == ".csv":
        texts = dict.fromkeys(("prompt", "key", "response"), str)
        with reading(path, cure):
            table = pd.read_csv(
                path, dtype=texts, keep_default_na=False, na_values=[""], dtype_backend="pyarrow"
            )
            rows = pyarrow.Table.from_pandas(table).to_pylist()
            return list(enumerate(rows, 2))  # after the names
    return read_json_lines(path, "Correct the line.")


def _prompt(row: dict[str, Any], where: str) -> Prompt:
    sources = [name for name in ("prompt", "messages", "prompt_ids") if row.get(name) is not None]
    if len(sources) != 1:
        raise ValueError(f"{where} needs exactly one of 'prompt', 'messages' and 'prompt_ids'.")
    try:
        (named,) = name_prompts([row[sources[0]]])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    labels = {name: row.get(name) for name in ("key", "reference", "group")}
    columns = {name: value for name, value in row.items() if name not in _NO_COLUMNS}
    fields = {name: str(x) for name, x in labels.items() if x is not None}
    return replace(named, **fields, columns=columns)


def _response_ids(policy: Policy, row: dict[str, Any], where: str) -> list[int]:
    if ("response" in row) == ("response_ids" in row):
        raise ValueError(f"{where} needs exactly one of 'response' and 'response_ids'.")
    if "response_ids" in row:
        return row["response_ids"]
    if per_token := [name for name in _PER_TOKEN if name in row]:
        raise ValueError(f"{where} has {per_token[0]!r} for a text: give 'response_ids'.")
    if policy.tokenizer is None:
        raise ValueError(f"{where} is text, but the policy has no tokenizer: give 'response_ids'.")
    (ids,) = encode_texts(policy, [row["response"]], [f"{where}: the response"])
    ended = bool(ids) and ids[-1] in policy.eos_token_ids
    if row.get("finished", True) and policy.eos_token_id is not None and not ended:
        ids.append(policy.eos_token_id)
    return ids
