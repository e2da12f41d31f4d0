"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        passed: Whether the check passed; None if it could not be run.
        detail: What was measured, with numbers.
        advice: What to do, in a sentence; empty if passed.
    """

    name: str
    passed: bool | None
    detail: str
    advice: str = ""
