"""Where results are printed, and where progress."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.segment import Segment

UNKNOWN_WIDTH = 120
"""Columns of a file or a pipe, which has room for most tables."""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All of them but line breaks and tabs; and those that turn the direction of text."""


def _shown(character: re.Match[str]) -> str:
    return ascii(character[0])[1:-1]


def _width(stream: TextIO) -> int | None:
    """None for that of the terminal, or of $COLUMNS."""
    return None if stream.isatty() or "COLUMNS" in os.environ else UNKNOWN_WIDTH


class _Console(Console):
    """A console that shows control characters of names and texts, and does not send them.

    Its reader may go away: the error is left to the session, which ends quietly.
    """

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        for segment in super().render(*arguments, **options):
            shown = segment.text if segment.control else _CONTROL.sub(_shown, segment.text)
            yield Segment(shown, segment.style, segment.control)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


out = _Console(width=_width(sys.stdout))
"""Results."""
err = _Console(stderr=True, width=_width(sys.stderr))
"""Progress, notes and errors."""


def say(text: Any, console: Console = out) -> None:
    """Print a line as it is: no markup, no colours, no line breaks."""
    console.print(str(text), markup=False, highlight=False, soft_wrap=True)


def say_written(path: Path) -> None:
    """Print where results are."""
    say(f"Wrote {path}")
