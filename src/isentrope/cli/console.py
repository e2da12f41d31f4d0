"""Where results are printed, and where progress."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

UNKNOWN_WIDTH = 120
"""Columns of a file or a pipe, which has room for most tables."""


def _width(stream: TextIO) -> int | None:
    """None for that of the terminal, or of $COLUMNS."""
    return None if stream.isatty() or "COLUMNS" in os.environ else UNKNOWN_WIDTH


class _Console(Console):
    """A console whose reader may go away: the error is left to the session, which ends quietly."""

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
