"""Columns of a rollouts file, read and checked: their types, no nulls, values in range."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from isentrope.system.errors import FileError
from isentrope.system.reading import read_arrow, reading

_LARGEST_ID = 2**31
_ROUNDING = 1e-3
"""By which a log-probability may exceed 0, and an entropy be below it."""
_KINDS = {
    "prompt_index": "integers",
    "rewards": "numbers",
    "advantages": "numbers",
    "prompt_keys": "texts",
    "references": "texts",
    "response_texts": "texts",
}
"""Columns with one value per sequence; all others hold lists."""
_LIST_KINDS = {"prompt_ids": "integers", "response_ids": "integers", "response_mask": "booleans"}
"""What lists hold; those of other columns hold numbers."""
_BOUNDS = {
    "prompt_ids": (0, _LARGEST_ID),
    "response_ids": (0, _LARGEST_ID),
    "prompt_index": (0, 2**53),
    "sampler_logprobs": (-math.inf, _ROUNDING),
    "sampler_entropies": (-_ROUNDING, math.inf),
}


def _is_number(kind: Any) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


_IS: dict[str, Callable[[Any], bool]] = {
    "integers": pa.types.is_integer,
    "numbers": _is_number,
    "texts": _is_text,
    "booleans": pa.types.is_boolean,
}


def read_rollout_columns(
    path: str | Path, known: Collection[str], cure: str
) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """The columns of a rollouts file.

    Args:
        path: A parquet file.
        known: The columns that it may have.
        cure: What to do if it cannot be read, a sentence.

    Returns:
        The values by column, and the metadata of the file.

    Raises:
        FileError: If a column is missing, unknown, or holds something else than it should.
    """
    table = read_arrow(path, cure)
    missing = {"prompt_ids", "response_ids", "prompt_index"} - set(table.column_names)
    unknown = set(table.column_names) - set(known)
    if missing or unknown:
        raise FileError(
            path,
            f"{path} is not a rollouts file: missing {sorted(missing)}, unknown {sorted(unknown)}.",
        )
    with reading(path, cure):
        for name in table.column_names:
            require_column(name, table.column(name))
        return table.to_pydict(), table.schema.metadata or {}


def require_column(name: str, column: Any) -> None:
    """Refuse a column of a file by its type, its nulls and its range.

    Args:
        name: Of the column.
        column: An arrow column.

    Raises:
        ValueError: Saying what it holds.
    """
    if name != "references" and column.null_count:
        raise ValueError(f"{name} has {column.null_count} empty entries")
    if name not in _KINDS:
        column = _flattened(name, column)
    kind = _KINDS.get(name) or _LIST_KINDS.get(name, "numbers")
    empty = pa.types.is_null(column.type) and name == "references"
    if not (empty or _IS[kind](column.type)):
        raise ValueError(f"{name} holds {column.type}, not {kind}")
    if kind in ("integers", "numbers") and len(column):
        values = column.to_numpy()
        if not np.isfinite(values).all():
            raise ValueError(f"{name} holds a number that is not finite")
        low, high = _BOUNDS.get(name, (-math.inf, math.inf))
        if values.min() < low or values.max() > high:
            raise ValueError(f"{name} holds values from {values.min()} to {values.max()}")


def _flattened(name: str, column: Any) -> Any:
    """The entries of all lists."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise ValueError(f"{name} holds {column.type}, not lists")
    entries = pa.chunked_array([part.flatten() for part in column.chunks], column.type.value_type)
    if entries.null_count:
        raise ValueError(f"{name} has {entries.null_count} empty entries in its lists")
    return entries
