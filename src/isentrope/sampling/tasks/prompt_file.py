"""A user's prompts as a task, one JSON object per line, or in parquet or csv (`custom`).

No library of tensors is imported here, so that what is wrong with a file is said at once.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isentrope.sampling.prompt import Prompt, name_prompts, prompt_of_row
from isentrope.sampling.tasks.lines import (
    NO_REFERENCE_OF_U,
    PromptLine,
    read_rows,
    require_response,
    require_splittable,
)
from isentrope.sampling.tasks.task import require_share, shuffled_epochs
from isentrope.system.files import short_digest

PromptSource = str | Path | Sequence[Any]
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
            raise ValueError(NO_REFERENCE_OF_U)
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
        for place, response in self._responses:
            require_response(place, response)
        order = shuffled_epochs(len(self.prompts), n, seed)
        return [(self.prompts[i], str(self._responses[i][1])) for i in order]


def _read_prompts(source: PromptSource) -> tuple[list[str], list[Prompt], list[Any]]:
    """Where each prompt stands, the prompts, and their own responses, or None."""
    if not isinstance(source, (str, Path)):
        prompts = name_prompts(source)
        return [f"Prompt {p.key!r}" for p in prompts], prompts, [None] * len(prompts)
    rows = read_rows(Path(source), PromptLine)
    prompts = [prompt_of_row(row, place) for place, row in rows]
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
