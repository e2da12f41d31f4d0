"""Columns of a rollouts file, read and checked: their types, no nulls, values in range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute

from isentrope.system.errors import FileError
from isentrope.system.reading import read_arrow, reading

_FLATTEN: Any = vars(compute)["list_flatten"]  # made when the module is imported
_IDS, _NUMBERS = pa.list_(pa.int64()), pa.list_(pa.float64())
TYPES = {
    "prompt_ids": _IDS,
    "response_ids": _IDS,
    "prompt_index": pa.int64(),
    "sampler_logprobs": _NUMBERS,
    "sampler_entropies": _NUMBERS,
    "rewards": pa.float64(),
    "advantages": pa.float64(),
    "prompt_keys": pa.string(),
    "references": pa.string(),
    "response_texts": pa.string(),
    "token_weights": _NUMBERS,
    "entropy_weights": _NUMBERS,
    "response_mask": pa.list_(pa.bool_()),
}
"""Every column, and what it holds."""

_ROUNDING = 1e-3
"""By which a log-probability may exceed 0, and an entropy be below it."""
_BOUNDS = {
    "prompt_ids": (0, 2**31),
    "response_ids": (0, 2**31),
    "prompt_index": (0, 2**53),
    "sampler_logprobs": (-1e300, _ROUNDING),
    "sampler_entropies": (-_ROUNDING, 1e300),
}


def read_rollout_columns(path: str | Path, cure: str) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """The columns of a rollouts file.

    Args:
        path: A parquet file.
        cure: What to do if it cannot be read, a sentence.

    Returns:
        The values by column, and the metadata of the file.

    Raises:
        FileError: If a column is missing, unknown, or holds something else than it should.
    """
    table = read_arrow(path, cure)
    missing = {"prompt_ids", "response_ids", "prompt_index"} - set(table.column_names)
    unknown = set(table.column_names) - set(TYPES)
    if missing or unknown:
        raise FileError(
            path,
            f"{path} is not a rollouts file: missing {sorted(missing)}, unknown {sorted(unknown)}.",
        )
    with reading(path, cure):
        return {n: _values(n, table.column(n)) for n in table.column_names}, (
            table.schema.metadata or {}
        )


def _values(name: str, column: Any) -> list[Any]:
    kind: Any = TYPES[name]
    given = column
    try:
        column = given.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"{name} holds {given.type}, not {kind}") from error
    if name == "response_mask" and column.cast(given.type) != given:
        raise ValueError(f"{name} holds numbers besides 0 and 1")  # which would be true
    entries = _FLATTEN(column) if pa.types.is_list(kind) else column
    if name != "references" and column.null_count + entries.null_count:
        raise ValueError(f"{name} has empty entries")
    if kind != pa.string():
        (low, high), numbers = _BOUNDS.get(name, (-1e300, 1e300)), entries.to_numpy()
        if not ((numbers >= low) & (numbers <= high)).all():
            raise ValueError(f"{name} holds a number that is not finite, or out of range")
    return column.to_pylist()
