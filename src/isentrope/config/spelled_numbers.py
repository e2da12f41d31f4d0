"""Numbers that keep the text they were read from, for where a text is due."""

import re
from collections.abc import Mapping
from typing import Any


class SpelledInt(int):
    """A whole number and its spelling."""

    text: str


class SpelledFloat(float):
    """A real number and its spelling."""

    text: str


def number_of(text: str) -> int | float:
    """The number that a text spells."""
    number = (SpelledInt if text.lstrip("+-").isdecimal() else SpelledFloat)(text)
    number.text = text
    return number


def spelling(value: Any) -> Any:
    """The text of a number that was read without quotes; any other value as it is."""
    return value.text if isinstance(value, (SpelledInt, SpelledFloat)) else value


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""A number by its exponent, which PyYAML leaves a text where it has no dot or no sign."""


def as_written(content: Any) -> Any:
    """Content of PyYAML, with numbers for texts such as 1e-5."""
    if isinstance(content, Mapping):
        return {key: as_written(value) for key, value in content.items()}
    if isinstance(content, list):
        return [as_written(value) for value in content]
    if isinstance(content, str) and _EXPONENT.fullmatch(content):
        return number_of(content)
    return content
