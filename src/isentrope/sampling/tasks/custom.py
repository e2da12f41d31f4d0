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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.generate import rollouts_of
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.prompts import (
    PromptLike,
    as_prompts,
    name_prompts,
    prompt_of_row,
    runs_of,
    with_template,
)
from isentrope.sampling.tasks.lines import (
    NO_REFERENCE,
    PER_TOKEN,
    PromptLine,
    ResponseLine,
    complete_column,
    read_rows,
    require_response,
    require_splittable,
)
from isentrope.sampling.tasks.task import require_share, shuffled_epochs
from isentrope.system.files import short_digest

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
            raise ValueError(NO_REFERENCE)
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
            require_response(where, response)
        order = shuffled_epochs(len(self.prompts), n, seed)
        return [(self.prompts[i], str(self._responses[i][1])) for i in order]


def _read_prompts(source: PromptSource) -> tuple[list[str], list[Prompt], list[Any]]:
    """Where each prompt stands, the prompts, and their own responses, or None."""
    if not isinstance(source, (str, Path)):
        prompts = name_prompts(source)
        return [f"Prompt {p.key!r}" for p in prompts], prompts, [None] * len(prompts)
    rows = read_rows(Path(source), PromptLine)
    prompts = [prompt_of_row(row, where) for where, row in rows]
    lines = list(range(len(prompts)))
    if all("response_ids" in row for _, row in rows):  # a line per response
        first = {prompts[i].content: i for i in reversed(lines)}
        lines = [i for i in lines if first[prompts[i].content] == i]
    places = [rows[i][0] for i in lines]
    responses = [rows[i][1].get("response") for i in lines]
    return places, [prompts[i] for i in lines], responses


def _lines_of_split(prompts: list[Prompt], split: str, test_share: float, path: str) -> list[int]:
    """Lines of the prompts of a split; equal prompts are of one split, whatever their order."""
    require_share(test_share, split, path)
    different = sorted({p.content for p in prompts}, key=lambda text: short_digest(text, 8))
    size = require_splittable(path, len(different), test_share)
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
    rows = read_rows(Path(path), ResponseLine)
    named = [prompt_of_row(row, where) for where, row in rows]
    prompts = as_prompts(policy, with_template(named, template))
    responses = [torch.tensor(_response_ids(policy, row, where)) for where, row in rows]
    columns: dict[str, Any] = {name: complete_column(rows, name) for name in PER_TOKEN}
    columns |= {f"{name}s": complete_column(rows, name) for name in ("reward", "advantage")}
    if len(steps := {row.get("step") for _, row in rows}) > 1:
        raise ValueError(
            f"{path} holds the responses of {len(steps)} training steps: an update batch is the "
            "responses of one step."
        )
    return rollouts_of(policy, prompts, runs_of(prompts), responses, **columns)


def _response_ids(policy: Policy, row: dict[str, Any], where: str) -> list[int]:
    if ("response" in row) == ("response_ids" in row):
        raise ValueError(f"{where} needs exactly one of 'response' and 'response_ids'.")
    if "response_ids" in row:
        return row["response_ids"]
    if per_token := [name for name in PER_TOKEN if name in row]:
        raise ValueError(f"{where} has {per_token[0]!r} for a text: give 'response_ids'.")
    if policy.tokenizer is None:
        raise ValueError(f"{where} is text, but the policy has no tokenizer: give 'response_ids'.")
    (ids,) = encode_texts(policy, [row["response"]], [f"{where}: the response"])
    ended = bool(ids) and ids[-1] in policy.eos_token_ids
    if row.get("finished", True) and policy.eos_token_id is not None and not ended:
        ids.append(policy.eos_token_id)
    return ids
