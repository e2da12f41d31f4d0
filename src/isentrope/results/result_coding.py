"""How results are written as JSON and read back: types for fields, and errors in one sentence.

JSON holds neither NaN nor infinity, so both are written as null. What is null is read as NaN where
a number was withheld, and as None where a quantity was not asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError

from isentrope.nouns.estimate import Estimate
from isentrope.system.errors import IsentropeError
from isentrope.system.file_contents import finite
from isentrope.system.reading import reading
from isentrope.system.strict_json import parse_json

T = TypeVar("T")

_WITHHELD = ("value", "se", "ci_low", "ci_high")
"""Numbers of an Estimate that may be NaN."""


class ResultsError(IsentropeError, ValueError):
    """A results.json that cannot be read."""


def number_or_nan(content: Any) -> Any:
    """NaN in place of null."""
    return math.nan if content is None else content


def estimate_from(content: Any) -> Any:
    """The fields of an Estimate, with NaN in place of null; an Estimate as it is."""
    if not isinstance(content, Mapping):
        return content
    numbers = {key: number_or_nan(content[key]) for key in _WITHHELD if key in content}
    warnings = content.get("warnings", ())
    kept = tuple(warnings) if isinstance(warnings, list) else warnings
    return {**content, **numbers, "warnings": kept}


OPTIONAL: Any = Field(exclude_if=lambda value: value is None)
"""Marks a field whose key is absent from the file where its value is None."""

Number = Annotated[float, BeforeValidator(number_or_nan)]
"""A number; NaN where the file has null."""

AS_DICT = PlainSerializer(Estimate.to_dict)
Value = Annotated[Estimate, BeforeValidator(estimate_from), AS_DICT]
"""An Estimate, written with all of its fields."""


def encode(adapter: TypeAdapter[T], content: T) -> dict[str, Any]:
    """The content of a file."""
    return finite(adapter.dump_python(content, by_alias=True))


def decode(adapter: TypeAdapter[T], text: str, path: Path) -> T:
    """Read back what `encode` made; numbers are not made of texts, nor texts of numbers.

    Args:
        adapter: Of the type.
        text: JSON.
        path: The file that holds it, for messages.

    Returns:
        The content.

    Raises:
        ResultsError: If a key is missing, or its value has another type.
    """
    with reading(path, "Run the command that made it again."):
        parse_json(text)
    try:
        return adapter.validate_json(text, by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        what = "is missing" if first["type"] == "missing" else f"is wrong ({first['msg']})"
        raise ResultsError(
            f"{path}: {key or 'its content'} {what}: run the command that made it again."
        ) from error
