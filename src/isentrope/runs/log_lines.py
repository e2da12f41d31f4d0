"""Logs with one object of numbers per line, as a report reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isentrope.system.reading import reading
from isentrope.system.strict_json import parse_json


def read_log(path: str | Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a log that have a step and numbers alone, and how many others there are."""
    rows, lost = [], 0
    with reading(path) as file:
        lines = file.read_bytes().decode(errors="replace").split("\n")
    for line in lines:
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and _is_count(row.get("step")) and all(map(_plain, row.values())):
            rows.append(row)
        else:
            lost += 1
    return rows, lost


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))
