"""Types of values that several sections share: whole numbers, seeds, real numbers, paths, names.

Types are strict: true and "3" are not numbers, and 3.0 is not a count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

LARGEST_COUNT = 2**31 - 1
LARGEST_SEED = 2**32 - 1
LARGEST_REAL = 1e12


def _seed(value: int) -> int:
    if not 0 <= value <= LARGEST_SEED:
        raise ValueError(f"a seed is a whole number from 0 to {LARGEST_SEED}, got {value}")
    return value


Encode = Callable[[str], bytes]


def _text(value: str, what: str = "a text", encode: Encode = str.encode) -> str:
    if "\x00" in value:
        raise ValueError(f"{what} must not have a NUL character")
    try:
        encode(value)
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must not have half a character (a lone surrogate)") from error
    return value


def _not_blank(what: str, encode: Encode = str.encode) -> AfterValidator:
    def check(value: str) -> str:
        if not value.strip():
            raise ValueError(f"{what} must not be empty or blank")
        return _text(value, what, encode)

    return AfterValidator(check)


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


Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Seed = Annotated[int, AfterValidator(_seed)]
Order = Annotated[Literal[0, 1, 2], BeforeValidator(_no_truth_value)]

Real = Annotated[float, Field(ge=-LARGEST_REAL, le=LARGEST_REAL)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_REAL)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_REAL)]
Rate = Annotated[float, Field(gt=0, le=1e9)]
"""A learning rate."""
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
Share = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

PathText = Annotated[str, _not_blank("a path", os.fsencode)]
"""A path, or a name on the model hub."""
Text = Annotated[str, AfterValidator(lambda value: _text(value))]
Name = Annotated[str, _not_blank("a name")]
FileName = Annotated[Name, AfterValidator(_file_name)]
"""The name of a file or folder, which cannot leave the folder that it is in."""
