"""Files of tensors and tables: safetensors, what torch.save writes, and parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isentrope.system.file_contents import TableSchema
from isentrope.system.reading import RESTORE_FILE, reading

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

_MOST_VALUES = 2 * 10**8
"""Of a column."""


def read_tensors(
    path: str | Path,
    cure: str = RESTORE_FILE,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Args:
        path: The file.
        cure: What to do if it cannot be read, a sentence.
        shapes: The names and shapes that it must have; None for any.

    Returns:
        Tensor by name.

    Raises:
        ValueError: If it is damaged, or has others.
    """
    from safetensors.torch import load_file

    with reading(path, cure) as file:
        tensors = load_file(file)
        for name, shape in (shapes or {}).items():
            stored = tuple(tensors[name].shape) if name in tensors else None
            if stored != tuple(shape):
                raise ValueError(f"its tensor {name!r} has shape {stored}, not {shape}")
        return tensors


def read_tensor_headers(
    path: str | Path, cure: str = RESTORE_FILE
) -> dict[str, tuple[str, list[int]]]:
    """Types and shapes of the tensors in a safetensors file, without their values."""
    from safetensors import safe_open

    with reading(path, cure) as file, safe_open(file, "pt") as content:
        slices = {key: content.get_slice(key) for key in content.keys()}  # noqa: SIM118
        return {key: (part.get_dtype(), list(part.get_shape())) for key, part in slices.items()}


def read_tensor_notes(path: str | Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    from safetensors import safe_open

    with reading(path) as file, safe_open(file, "pt") as content:
        return dict(content.metadata() or {})


def read_torch(path: str | Path, cure: str = RESTORE_FILE) -> Any:
    """What torch.save wrote: tensors and plain values alone, on the CPU."""
    import torch

    from isentrope.system.inert import require_bounded, require_intact

    with reading(path, cure) as file:
        require_intact(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
        require_bounded(content)
        return content


def read_torch_as_data(path: str | Path) -> Any:
    """What torch.save wrote; objects of other classes are `inert.Inert`."""
    from isentrope.system.inert import load_torch

    with reading(path) as file:
        return load_torch(file).value


def read_schema(path: str | Path) -> Any:
    """Names of the columns of a parquet file, and its metadata."""
    import pyarrow.parquet as pq

    with reading(path) as file:
        return pq.read_schema(file)


def read_arrow(path: str | Path, cure: str = RESTORE_FILE) -> Any:
    """A parquet file as an arrow table.

    Returns:
        The table.

    Raises:
        ValueError: If a column takes much more memory than the file: repeated values are packed.
    """
    import pyarrow.parquet as pq

    with reading(path, cure) as file:
        metadata = pq.read_metadata(file)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        for k in range(metadata.num_columns):
            if (values := sum(group.column(k).num_values for group in groups)) > _MOST_VALUES:
                raise ValueError(f"a column has {values} values, more than any table of its kind")
        table = pq.read_table(file)
        table.validate(full=True)
        return table


def read_table(
    path: str | Path,
    cure: str = RESTORE_FILE,
    *,
    schema: TableSchema,
    today: Callable[[str], str] = str,
) -> pd.DataFrame:
    """A parquet file as a table.

    Args:
        path: The file.
        cure: What to do if it cannot be read, a sentence.
        schema: The columns that it must have.
        today: Turns the name that a column had in an earlier version into that of today.

    Returns:
        The table.

    Raises:
        ValueError: If it is damaged, or a column is missing, unknown or of another type.
    """
    with reading(path, cure) as file:
        table = read_arrow(file, cure)
        if fault := schema.fault(table.rename_columns([*map(today, table.column_names)])):
            raise ValueError(fault)
        return table.to_pandas().rename(columns=today)
