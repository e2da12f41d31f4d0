"""How results are written as JSON and read back, with errors in one sentence.

JSON holds neither NaN nor infinity, so both are written as null, and null is NaN again wherever the
type of a field wants a number. Where it may be None, null is None.

The notes call changes deltaH: results.json has those names beside ours, and files of the first
version have them alone.
"""

from __future__ import annotations

import json
import math
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SerializerFunctionWrapHandler, TypeAdapter, ValidationError, WrapSerializer

from isentrope.system.errors import IsentropeError
from isentrope.system.file_contents import finite
from isentrope.system.reading import reading

T = TypeVar("T")

CURE = "Run the command that made it again."

OF_THE_NOTES = {
    "deltaH_true": "delta_h",
    "deltaH_approx": "first_order",
    "deltaH_second": "second_order",
    "deltaH": "delta_h",
    "deltaJ": "delta_j",
}
"""Our names of what the notes call otherwise; the longer ones first."""


class ResultsError(IsentropeError, ValueError):
    """A results.json that cannot be read."""


def our_name(name: str) -> str:
    """The name that a column or key of the notes has here."""
    for theirs, ours in OF_THE_NOTES.items():
        name = name.replace(theirs, ours)
    return name


def also_as(*theirs: str) -> WrapSerializer:
    """Writes numbers under names of the notes too."""

    def write(content: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = handler(content)
        return written | {
            key.replace(OF_THE_NOTES[name], name): value
            for name in theirs
            for key, value in written.items()
            if OF_THE_NOTES[name] in key
        }

    return WrapSerializer(write)


def encode(adapter: TypeAdapter[T], content: T) -> dict[str, Any]:
    """The content of a file."""
    return finite(adapter.dump_python(content, by_alias=True))


def decode(adapter: TypeAdapter[T], content: object, path: Path) -> T:
    """Read back what `encode` made; numbers are not made of texts, nor texts of numbers.

    Args:
        adapter: Of the type.
        content: JSON as it was read.
        path: The file that holds it, for messages.

    Returns:
        The content.

    Raises:
        ResultsError: If a key is missing, or its value has another type.
    """
    with reading(path, CURE):  # content may be nested too deeply
        content = _with_our_names(content)
    try:
        try:
            return adapter.validate_json(json.dumps(content))
        except ValidationError as error:
            _put_nan(content, error)
            return adapter.validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "its content"
        what = "is missing" if first["type"] == "missing" else f"is wrong ({first['msg']})"
        raise ResultsError(f"{path}: {key} {what}. {CURE}") from error


def _with_our_names(content: Any) -> Any:
    if isinstance(content, list):
        return [_with_our_names(part) for part in content]
    if isinstance(content, dict):
        return {our_name(key): _with_our_names(part) for key, part in content.items()}
    return content


def _put_nan(content: Any, error: ValidationError) -> None:
    """Put NaN where a number is wanted and the file has null: pydantic says where that is."""
    for wrong in error.errors(include_url=False):
        if wrong["type"] == "float_type" and wrong["input"] is None:
            *path, last = wrong["loc"]
            reduce(getitem, path, content)[last] = math.nan
