"""The rows of a batch in a file, as far as they are read without the libraries of the work."""

from pathlib import Path
from typing import Any

from isentrope.sampling.tasks.lines import ResponseLine, read_rows, require_responses
from isentrope.sampling.tasks.requirements import MOST_BYTES
from isentrope.system.file_contents import read_schema
from isentrope.system.reading import parse_json, read_text

_LOGGED = ({"input", "output"}, {"prompt", "completion"})
"""Columns of what trainers log of a step."""
_SAVED = {"prompt_ids", "response_ids", "prompt_index"}
"""Columns of rollouts that isentrope saved."""


def require_batch_file(file: Path) -> None:
    """Refuse a batch in a file of another kind.

    Args:
        file: A file that is there.

    Raises:
        ValueError: In a sentence.
    """
    if file.suffix not in (".parquet", ".jsonl"):
        raise ValueError(f"{file} is neither .parquet nor .jsonl: a batch is one of these.")
    columns = set(read_schema(file).names) if file.suffix == ".parquet" else _SAVED
    if (missing := _SAVED - columns) and not any(logged <= columns for logged in _LOGGED):
        raise ValueError(
            f"{file} is no batch of responses: it lacks {', '.join(sorted(missing))}, and has "
            f"{', '.join(sorted(columns)) or 'no column'}. Give rollouts that isentrope saved, "
            "or what TRL logged of a step."
        )


def rows_of_batch(file: Path) -> list[tuple[str, dict[str, Any]]] | None:
    """The lines of a batch that was written by hand.

    Args:
        file: A file of a batch.

    Returns:
        What messages call each, and its fields; None for a large file, a table, and what a trainer
        logged, which are read with the libraries of the work.

    Raises:
        ValueError: If a line is not understood, or they are of several steps.
    """
    if file.suffix != ".jsonl" or file.stat().st_size > MOST_BYTES:
        return None
    try:
        first = parse_json(next(filter(str.strip, read_text(file).splitlines()), "{}"))
    except ValueError:
        first = None  # reading its lines says which is wrong
    if isinstance(first, dict) and any(columns <= first.keys() for columns in _LOGGED):
        return None
    rows = read_rows(file, ResponseLine)
    require_responses(file, rows)
    return rows
