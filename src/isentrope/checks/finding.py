"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one check saw.

    Attributes:
        name: What was checked.
        passed: Whether it is as it should be; None if it could not be checked.
        detail: What was seen, with numbers.
        advice: What to do, in a sentence; empty if passed.
    """

    name: str
    passed: bool | None
    detail: str
    advice: str = ""
