"""What each field of a user's jsonl file may hold (`custom`)."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from typing import Any

_LARGEST_ID = 2**31


def require_field(where: str, name: str, value: Any) -> None:
    """Refuse a value of another type than its field has.

    Args:
        where: The file and the line.
        name: The field, a known one.
        value: What it holds.

    Raises:
        ValueError: Naming the line, the field and what it should be.
    """
    words, fits = _FIELDS[name]
    if not fits(value):
        raise ValueError(f"{where}: {name!r} should be {words}, got {reprlib.repr(value)}.")


def _is_text(value: Any) -> bool:
    """Whether it is a text without half a character (a lone surrogate)."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def _is_name(value: Any) -> bool:
    return value is None or _is_text(value) or _is_number(value)


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) > 0 and all(map(fits, value))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("role")) and "content" in value


_is_ids = _is_list_of(lambda value: _is_integer(value) and 0 <= value < _LARGEST_ID)
_is_messages = _is_list_of(_is_message)
_IDS = ("a list of token ids", _is_ids)
_MESSAGES = ("a list of messages, each with 'role' and 'content'", _is_messages)
_NUMBER = ("a finite number", _is_number)
_NUMBERS = ("a list of finite numbers", _is_list_of(_is_number))

_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt": (
        "a text, or a list of messages or token ids",
        lambda value: _is_text(value) or _is_messages(value) or _is_ids(value),
    ),
    "messages": _MESSAGES,
    "prompt_ids": _IDS,
    "reference": ("a text or a number", _is_name),
    "key": ("a text or a number", _is_name),
    "response": ("a text", _is_text),
    "response_ids": _IDS,
    "finished": ("true or false", lambda value: isinstance(value, bool)),
    "reward": _NUMBER,
    "advantage": _NUMBER,
    "response_mask": (
        "a list of 0 and 1, or of true and false",
        _is_list_of(lambda value: isinstance(value, int) and value in (0, 1)),
    ),
    "step": ("the number of a training step", lambda value: _is_integer(value) and value > 0),
    "sampler_logprobs": _NUMBERS,
    "token_weights": _NUMBERS,
    "entropy_weights": _NUMBERS,
}
