"""Types of texts, lists and dictionaries that several sections share (numbers: `number_types`)."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from isentrope.config.strict_yaml import SpelledFloat, SpelledInt, spelling

_T = TypeVar("_T")

MOST_SEQUENCES = 10**7
LARGEST_SETTING = 2.0**63


def _require_text(value: str) -> str:
    if re.search("[\x00\ud800-\udfff]", value):
        raise ValueError("a text must not have a NUL character, nor half a character (a surrogate)")
    return value


def _require_not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("a name or a path must not be empty or blank")
    return _require_text(value)


def _require_file_name(value: str) -> str:
    if value in (".", "..") or any(mark in value for mark in ("/", "\\")):
        raise ValueError(
            f"{value[:80]!r} is not a name in a folder: leave out /, \\ and .., or set the folder "
            "by output.directory"
        )
    if len(value.encode()) > 200:
        raise ValueError("a name of a file or folder has at most 200 bytes")
    return value


def _require_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value[:80]!r} is no regular expression: {error}") from error
    return value


def _refuse_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, got {value}")
    return value


def _make_plain(value: Any) -> Any:
    """A value, or all those in a dictionary or list, with numbers that have no spelling."""
    if isinstance(value, Mapping):
        return {key: _make_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_plain(item) for item in value]
    if isinstance(value, (int, float)) and not abs(value) < LARGEST_SETTING:
        raise ValueError("should be a finite number of at most 63 bits")
    if isinstance(value, (SpelledInt, SpelledFloat)):
        return int(value) if isinstance(value, int) else float(value)
    return value


def too_many(**counts: int) -> tuple[bool, str]:
    """Whether counts multiply to more sequences than a batch may have, and the refusal."""
    factors = " times ".join(f"{name}={count}" for name, count in counts.items())
    words = f"{factors} are more than {MOST_SEQUENCES} sequences: make one of them smaller"
    return math.prod(counts.values()) > MOST_SEQUENCES, words


NonEmpty = Annotated[list[_T], Field(min_length=1)]
AnyValues = Annotated[dict[str, Any], BeforeValidator(_make_plain)]
"""Values of any kind, by name."""
Order = Annotated[Literal[0, 1, 2], BeforeValidator(_refuse_truth_value)]

Text = Annotated[str, BeforeValidator(spelling), AfterValidator(_require_text)]
Name = PathText = Annotated[str, BeforeValidator(spelling), AfterValidator(_require_not_blank)]
"""A name, or a path, or a name on the model hub."""
Pattern = Annotated[Name, AfterValidator(_require_pattern)]
FileName = Annotated[Name, AfterValidator(_require_file_name)]
"""The name of a file or folder, which cannot leave the folder that it is in."""
