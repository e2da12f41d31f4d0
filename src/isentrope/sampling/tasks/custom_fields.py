"""What each field of a user's jsonl file may hold (`custom`)."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any


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


def _text(value: Any) -> bool:
    """Whether it is a text without half a character (a lone surrogate)."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _number(value: Any) -> bool:
    # No comparison with NaN is true.
    return type(value) in (int, float) and abs(value) < 1e300


def _name(value: Any) -> bool:
    return value is None or _text(value) or _number(value)


def _message(value: Any) -> bool:
    return isinstance(value, dict) and _text(value.get("role")) and "content" in value


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) > 0 and all(map(fits, value))


_is_ids = _list_of(lambda value: type(value) is int and 0 <= value < 2**31)
_is_messages = _list_of(_message)
_IDS = ("a list of token ids", _is_ids)
_NAME = ("a text or a number", _name)
_NUMBER = ("a finite number", _number)
_NUMBERS = ("a list of finite numbers", _list_of(_number))

_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "prompt": (
        "a text, or a list of messages or token ids",
        lambda value: _text(value) or _is_messages(value) or _is_ids(value),
    ),
    "messages": ("a list of messages, each with 'role' and 'content'", _is_messages),
    "prompt_ids": _IDS,
    "reference": _NAME,
    "key": _NAME,
    "response": ("a text", _text),
    "response_ids": _IDS,
    "finished": ("true or false", lambda value: isinstance(value, bool)),
    "reward": _NUMBER,
    "advantage": _NUMBER,
    "response_mask": (
        "a list of 0 and 1, or of true and false",
        _list_of(lambda value: isinstance(value, int) and value in (0, 1)),
    ),
    "step": ("the number of a training step", lambda value: type(value) is int and value > 0),
    "sampler_logprobs": _NUMBERS,
    "token_weights": _NUMBERS,
    "entropy_weights": _NUMBERS,
}
