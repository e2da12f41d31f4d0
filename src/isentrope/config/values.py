"""Types of values that several sections share: whole numbers, seeds, real numbers, paths, names.

Types are strict: true and "3" are not numbers, and 3.0 is not a count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

LARGEST_COUNT = 2**31 - 1
LARGEST_SEED = 2**32 - 1
LARGEST_REAL = 1e12
LARGEST_SETTING = 2.0**63


def _text(value: str) -> str:
    if re.search("[\x00\ud800-\udfff]", value):
        raise ValueError("a text must not have a NUL character, nor half a character (a surrogate)")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("a name or a path must not be empty or blank")
    return _text(value)


def _file_name(value: str) -> str:
    if value in (".", "..") or any(mark in value for mark in ("/", "\\")):
        raise ValueError(
            f"{value[:80]!r} is not a name in a folder: leave out /, \\ and .., or set the folder "
            "by output.directory"
        )
    if len(value.encode()) > 200:
        raise ValueError("a name of a file or folder has at most 200 bytes")
    return value


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, got {value}")
    return value


class _Int(int):
    text: str


class _Float(float):
    text: str


def written(text: str) -> int | float:
    """The number that a text spells; it keeps its spelling, for where a text is due."""
    number = (_Int if text.lstrip("+-").isdecimal() else _Float)(text)
    number.text = text
    return number


def spelling(value: Any) -> Any:
    """The text of a number that was read without quotes; any other value as it is."""
    return value.text if isinstance(value, (_Int, _Float)) else value


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""A number by its exponent, which PyYAML leaves a text where it has no dot or no sign."""


def as_written(content: Any) -> Any:
    """Content of PyYAML, with numbers for texts such as 1e-5."""
    if isinstance(content, Mapping):
        return {key: as_written(value) for key, value in content.items()}
    if isinstance(content, list):
        return [as_written(value) for value in content]
    number = isinstance(content, str) and _EXPONENT.fullmatch(content)
    return written(content) if number else content


def _plain(value: Any) -> Any:
    """A value, or all those in a dictionary or list, with numbers that have no spelling."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (int, float)) and not abs(value) < LARGEST_SETTING:
        raise ValueError("should be a finite number of at most 63 bits")
    if isinstance(value, (_Int, _Float)):
        return int(value) if isinstance(value, int) else float(value)
    return value


Settings = Annotated[dict[str, Any], BeforeValidator(_plain)]
"""Values of any kind, by name."""

Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Order = Annotated[Literal[0, 1, 2], BeforeValidator(_no_truth_value)]

Real = Annotated[float, Field(ge=-LARGEST_REAL, le=LARGEST_REAL)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_REAL)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_REAL)]
Rate = Annotated[float, Field(gt=0, le=1e9)]
"""A learning rate."""
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
Share = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

Text = Annotated[str, BeforeValidator(spelling), AfterValidator(_text)]
Name = PathText = Annotated[str, BeforeValidator(spelling), AfterValidator(_not_blank)]
"""A name, or a path, or a name on the model hub."""
FileName = Annotated[Name, AfterValidator(_file_name)]
"""The name of a file or folder, which cannot leave the folder that it is in."""
