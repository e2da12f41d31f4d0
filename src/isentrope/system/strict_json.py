"""JSON that means one thing: no key is given twice, and every number is finite."""

import json
import math
from typing import Any


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Parse JSON in which no key is given twice.

    Args:
        text: JSON.
        finite: Whether NaN and infinity are refused.

    Returns:
        The content.

    Raises:
        ValueError: If it is not that.
    """
    number = _finite if finite else float
    content = json.loads(text, object_pairs_hook=_once, parse_constant=number, parse_float=number)
    if "\\u" in text:
        json.dumps(content, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"the key {twice!r} is given twice")
    return content


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
