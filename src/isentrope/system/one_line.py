"""Objects in one line, as the prompt of Python and the cell of a notebook show them.

    <Rollouts: 24 responses to 6 prompts, 71 tokens; rewards, advantages>
    <ProbeOptions: log_every=5>

A line has at most `LONGEST_LINE` characters. A fact that does not fit is left out whole, or after
the last of its clauses that fits, so that no number is cut, and none is without its interval.
Characters that a terminal would obey are escaped.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from reprlib import Repr
from typing import Any

LONGEST_LINE = 200
LONGEST_TEXT = 40
"""Characters of a text that is quoted."""
_LEFT_OUT = "…"
_CLAUSE = re.compile("[:;] ")
"""Where a fact may end."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All of them but line breaks and tabs; and those that turn the direction of text."""
_SHORT = Repr()
_SHORT.maxstring = LONGEST_TEXT


def one_line(instance: object, *facts: str) -> str:
    """The class of an object and facts about it.

    Args:
        instance: The object.
        *facts: The most important first.

    Returns:
        A line within angle brackets.
    """
    room = LONGEST_LINE - len(f"<{type(instance).__name__}: ; {_LEFT_OUT}>")
    text = ""
    left_out = False
    for fact in map(_printable, facts):
        ends = [len(fact), *(clause.start() for clause in reversed([*_CLAUSE.finditer(fact)]))]
        longer = [f"{text}; {fact[:end]}" if text else fact[:end] for end in ends]
        text = next((line for line in longer if len(line) <= room), text)
        left_out = left_out or text != longer[0]
    if left_out:
        text = f"{text}; {_LEFT_OUT}" if text else _LEFT_OUT
    return f"<{type(instance).__name__}: {text}>" if text else f"<{type(instance).__name__}>"


def changed_fields(instance: Any) -> Iterator[str]:
    """The fields of a dataclass that differ from their defaults, "seed=3"."""
    for field in fields(instance):
        value = getattr(instance, field.name)
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if value != default:
            yield f"{field.name}={_SHORT.repr(value)}"


def quoted(text: str) -> str:
    """The beginning of a text between quotation marks, with its control characters escaped."""
    return repr(text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + _LEFT_OUT)


def plural(number: int, noun: str) -> str:
    """A number of things, "1 prompt" or "1,234 prompts"; an s makes the plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def escape_controls(text: str) -> str:
    """A text with escapes for what a terminal would obey; its lines and tabs stay."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def _printable(text: str) -> str:
    """A text in one line, with escapes for what a terminal would obey."""
    plain = text.replace("\u00a0", " ")
    return "".join(x if x.isprintable() else ascii(x)[1:-1] for x in plain)
