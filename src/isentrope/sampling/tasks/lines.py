"""The lines of a file of prompts or responses: read, and refused where they are not understood.

No library of tensors or tables is imported before a file needs it, so that a line that is wrong is
named at once (`requirements`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveInt

from isentrope.system.reading import read_json_lines, reading, require_types

NO_COLUMNS = ("prompt", "messages", "prompt_ids", "completion", "completion_ids")
"""Fields that no reward function is given as a column of the data."""
VERL_REFERENCE = "reward_model"
"""Column of verl's data sets, whose field `ground_truth` is the reference."""
PER_TOKEN = ("response_mask", "sampler_logprobs", "token_weights", "entropy_weights")
"""Fields with one number per token of the response."""

_Number = Annotated[float, Field(gt=-1e300, lt=1e300)]
_Name = str | _Number | None
_Id = Annotated[int, Field(ge=0, lt=2**31)]


class PromptLine(BaseModel, extra="allow"):
    """What a line of a file of prompts may hold, and any other column."""

    prompt: str | list[dict[str, Any]] | list[_Id] = ""
    messages: list[dict[str, Any]] = []
    prompt_ids: list[_Id] = []
    reference: _Name = None
    key: _Name = None
    group: _Name = None
    response: str = ""


class ResponseLine(PromptLine, extra="forbid"):
    """What a line of a file of responses may hold."""

    response_ids: Annotated[list[_Id], Field(min_length=1)] = []
    finished: bool = True
    reward: _Number | None = 0.0
    advantage: _Number = 0.0
    step: PositiveInt = 1
    response_mask: list[bool | Annotated[int, Field(ge=0, le=1)]] = []
    sampler_logprobs: list[_Number] = []
    token_weights: list[_Number] = []
    entropy_weights: list[_Number] = []


PROMPT_FIELDS = frozenset(ResponseLine.model_fields)
"""Names in a line that are not columns for reward functions alone."""


NO_REFERENCE = (
    "A prompt in the file has no reference, so its responses have no reward: add 'reference' to "
    "every line, or reward responses by a function of your own (FILE.py:NAME)."
)
"""Why a response to a prompt of a file cannot be rewarded."""
NO_REFERENCE_OF_U = (
    f"{NO_REFERENCE} Demonstrations in a U_file need none: set estimator.objective=sft."
)
"""The same where it may be one of a measurement's U."""


def require_splittable(source: str, different: int, test_share: float) -> int:
    """Refuse prompts of which one of two splits would have none.

    Args:
        source: What messages call the prompts.
        different: How many different ones there are.
        test_share: Share of them that are those of "test".

    Returns:
        Prompts of "test".

    Raises:
        ValueError: In a sentence.
    """
    size = round(test_share * different)
    if not 0 < size < different:
        raise ValueError(
            f"{source} has {different} different prompts, too few to be shared between E and U: "
            "give more, or a file for each (batch_config.dataset_path and U_dataset_path)."
        )
    return size


def require_response(place: str, response: Any) -> None:
    """Refuse a line of prompts that shows no response.

    Args:
        place: What messages call the line.
        response: Its field, or None.

    Raises:
        ValueError: Naming the line.
    """
    if not isinstance(response, str):
        raise ValueError(f"{place} has no text in 'response': a demonstration needs one.")


def require_responses(path: str | Path, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """Refuse lines that are not responses of one training step.

    Args:
        path: Their file.
        rows: Of `read_rows`.

    Raises:
        ValueError: If one has no response, or two, or not a number for each of its tokens; or they
            are of several steps.
    """
    for place, row in rows:
        if ("response" in row) == ("response_ids" in row):
            raise ValueError(f"{place} needs exactly one of 'response' and 'response_ids'.")
        for name in PER_TOKEN:
            if name in row and "response" in row:
                raise ValueError(f"{place} has {name!r} for a text: give 'response_ids'.")
            if name in row and len(row[name]) != len(row["response_ids"]):
                raise ValueError(
                    f"{place} has {len(row[name])} values of {name!r} for a response of "
                    f"{len(row['response_ids'])} tokens: give one for each."
                )
    for name in ("reward", "advantage", *PER_TOKEN):
        complete_column(rows, name)
    if len(steps := {row.get("step") for _, row in rows}) > 1:
        raise ValueError(
            f"{path} holds the responses of {len(steps)} training steps: an update batch is the "
            "responses of one step."
        )


def complete_column(rows: list[tuple[str, dict[str, Any]]], name: str) -> list[Any] | None:
    """A field of every line.

    Args:
        rows: Of `read_rows`.
        name: The field.

    Returns:
        Its values; None if no line has it.

    Raises:
        ValueError: If some lines lack it.
    """
    places = [place for place, row in rows if name in row]
    if places and len(places) < len(rows):
        missing = next(place for place, row in rows if name not in row)
        raise ValueError(f"{missing} has no {name!r}, and {places[0]} has one: give all or none.")
    return [row[name] for _, row in rows] if places else None


def read_rows(path: Path, kind: type[BaseModel]) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a file.

    Args:
        path: A file of jsonl, parquet or csv.
        kind: `PromptLine` or `ResponseLine`.

    Returns:
        What messages call each, and its fields.

    Raises:
        ValueError: If a line is not understood, or there is none.
    """
    rows = [(f"{path}, line {i}", row) for i, row in _lines(path)]
    for place, row in rows:
        unknown = set(row) - set(kind.model_fields) if isinstance(row, dict) else ()
        if kind.model_config.get("extra") == "forbid" and unknown:
            raise ValueError(
                f"{place} has {min(unknown)!r}, which is not a field of a response: correct "
                f"the name (fields are {', '.join(kind.model_fields)}), or omit it (columns of a "
                "reward function stand in the file of its prompts, dataset_path)."
            )
        require_types(place, row, kind, "Correct the line.")
        scored = row.get(VERL_REFERENCE)
        if isinstance(scored, dict) and isinstance(scored.get("ground_truth"), str):
            row.setdefault("reference", scored["ground_truth"])
    if not rows:
        raise ValueError(f"The dataset is empty: {path} has no lines.")
    return rows


def _lines(path: Path) -> list[tuple[int, Any]]:
    """The rows of a file and their numbers from 1, whatever its format."""
    cure = "Give a file of jsonl, parquet or csv."
    if path.suffix == ".parquet":
        from pyarrow import parquet

        with reading(path, cure):
            return list(enumerate(parquet.read_table(path).to_pylist(), 1))
    if path.suffix == ".csv":
        import pandas as pd
        import pyarrow

        texts = dict.fromkeys(("prompt", "key", "response"), str)
        with reading(path, cure):
            table = pd.read_csv(
                path, dtype=texts, keep_default_na=False, na_values=[""], dtype_backend="pyarrow"
            )
            rows = pyarrow.Table.from_pandas(table).to_pylist()
            return list(enumerate(rows, 2))  # after the names
    return read_json_lines(path, "Correct the line.")


def source_of(row: Mapping[str, Any], place: str) -> str:
    """The one field of a line that has its prompt.

    Args:
        row: The line.
        place: What messages call it.

    Returns:
        The name.

    Raises:
        ValueError: If there is none, or are several.
    """
    sources = [name for name in ("prompt", "messages", "prompt_ids") if row.get(name) is not None]
    if len(sources) != 1:
        raise ValueError(f"{place} needs exactly one of 'prompt', 'messages' and 'prompt_ids'.")
    return sources[0]
