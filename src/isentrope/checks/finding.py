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

    @classmethod
    def judged(cls, name: str, fault: str | None, advice: str, sound: str) -> Finding:
        """A check that failed with a fault and its advice, or that found none.

        Args:
            name: What was checked.
            fault: What is wrong; empty or None where nothing is.
            advice: What to do about it.
            sound: What was measured where nothing is wrong.

        Returns:
            The finding.
        """
        return cls(name, False, fault, advice) if fault else cls(name, True, sound)
