"""What is written into files: tables as bytes, and plain values as JSON can hold them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal


def parquet(table: Any, compression: Literal["gzip"] | None = None) -> bytes:
    """A pandas table as the bytes of a parquet file, for `write_bytes`."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, compression=compression or "snappy")
    return buffer.getvalue()


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
    if isinstance(content, Mapping):
        return {str(key): finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
