"""What is written into files: tables as bytes, their columns, and plain values.

A table that has other columns than its schema, or other types, is refused by name. A type is the
name of an arrow type. Where it ends in "?", values may be missing. Those of "double" may be anyway:
NaN and null are the same there. A column without any value is of arrow's null type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyarrow import Table


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


def finite(content: Any) -> Any:
    """A copy of plain values with None for every number that JSON cannot hold."""
    return json.JSONDecoder(parse_constant=lambda _: None).decode(json.dumps(content))


_ALSO = {"double": ("int64",)}
_INDEX = "__index_level_0__"
"""Row numbers that pandas writes beside joined tables."""


@dataclass(frozen=True)
class TableSchema:
    """Columns of a table.

    Attributes:
        columns: Type by name.
        optional: Columns that may be absent.
    """

    columns: Mapping[str, str]
    optional: frozenset[str] = frozenset()

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
            declared = self.columns.get(name, "int64" if name == _INDEX else None)
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
