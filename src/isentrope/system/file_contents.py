"""Files of tables, tensors and plain values: their content as it is written, and as it is read.

A table that has other columns than its schema, or other types, is refused by name. A type is the
name of an arrow type. Where it ends in "?", values may be missing. Those of "double" may be anyway:
NaN and null are the same there. A column without any value is of arrow's null type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from isentrope.system.reading import RESTORE_FILE, reading

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow import Table
    from torch import Tensor

_MOST_VALUES = 2 * 10**8
"""Of a column."""


def yaml_value(value: Any) -> str:
    """A plain value as YAML on one line, for a setting.

    Args:
        value: What JSON holds.

    Returns:
        JSON but for letters beyond ASCII: JSON writes those beyond U+FFFF as two halves, which are
        two letters to YAML.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^ -~]", lambda letter: f"\\U{ord(letter[0]):08x}", text)


def parquet(table: Any, compression: Literal["gzip"] | None = None) -> bytes:
    """A pandas table as the bytes of a parquet file, for `write_bytes`."""
    return table.to_parquet(compression=compression or "snappy")


def csv(table: Any) -> bytes:
    """A pandas table as the bytes of a CSV file; no text in it is read as a formula."""
    safe = table.map(csv_cell).rename(columns=csv_cell)
    return safe.to_csv(index=False).encode()


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would read as a formula begins with a '."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file by name, so that equal content is equal bytes.

    Args:
        path: The file, written by the library in an order that changes.
    """
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(content) <= size:
            file.seek(8)
            file.write(content.ljust(size))


_ALSO = {"double": ("int64",)}
_INDEX = "__index_level_0__"
"""Row numbers that pandas writes beside joined tables."""


@dataclass(frozen=True)
class TableSchema:
    """Columns of a table.

    Attributes:
        columns: Type by name.
        optional: Columns that may be absent.
        others: Type of columns of any other name; None where there are none.
    """

    columns: Mapping[str, str]
    optional: frozenset[str] = frozenset()
    others: str | None = None

    def fault(self, table: Table) -> str | None:
        """What is wrong with a table.

        Args:
            table: As it was read.

        Returns:
            A clause that names the first column; None where nothing is wrong.
        """
        names: list[str] = table.column_names
        if not table.num_rows:
            return "it has no rows"
        for name in self.columns:
            if name not in (*names, *self.optional):
                return f"it has no column {name!r}"
        for name in names:
            if names.count(name) > 1:
                return f"it has two columns {name!r}"
            declared = self.columns.get(name, "int64" if name == _INDEX else self.others)
            if declared is None:
                return f"it has a column {name!r}, which is none of such a table"
            column = table.column(name)
            plain = declared.removesuffix("?")
            optional = declared in (f"{plain}?", "double")
            accepted = {plain, *_ALSO.get(declared, ())} | ({"null"} if optional else set())
            kind = re.sub(r"element: |item: |large_(?=string)", "", str(column.type))
            if kind not in accepted:
                return f"its column {name!r} holds {column.type}, not {plain}"
            if column.null_count and not optional:
                return f"its column {name!r} has empty entries"
        return None


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


def count_rows(path: str | Path, cure: str = RESTORE_FILE) -> int:
    """Rows of a parquet file, or lines of another that are not blank."""
    with reading(path, cure) as file:
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            return pq.read_metadata(file).num_rows
        with file.open(encoding="utf-8") as lines:
            return sum(bool(line.strip()) for line in lines)


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
