"""Where results and progress are printed, and tables that fit the width.

Columns are left out where a table is too wide; numbers are never cut. Each column has a rank.
Columns of rank 0 are always there; the others are added in the order of their ranks wherever there
is room. A line below the table says which are left out.

What a verb prints ends with the first screen, unless `--details` asks for all. A last line says how
much is left out. Conclusions are always there.
"""

import json
import math
import os
import shlex
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as RichTable

from isentrope.commands.command import Conclusion
from isentrope.nouns.columns import Column
from isentrope.results.answers.blocks import Sentence, Table
from isentrope.system.formatting import finite
from isentrope.system.one_line import escape_controls

UNKNOWN_WIDTH = 120
"""Columns of a file or a pipe, which has room for most tables."""


_HEAD = 5
"""Lines of a table down to its first row."""


def _width(stream: TextIO) -> int | None:
    """None for that of the terminal, or of $COLUMNS."""
    return None if stream.isatty() or "COLUMNS" in os.environ else UNKNOWN_WIDTH


class _Console(Console):
    """A console that shows control characters of names and texts, and does not send them.

    Its reader may go away: the error is left to the session, which ends quietly.
    """

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        for segment in super().render(*arguments, **options):
            if not segment.control:
                text = escape_controls(segment.text)
                segment = Segment(text, segment.style)
            yield segment

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


class Results(_Console):
    """A console that can stop at the end of the first screen.

    Attributes:
        room: Lines that are left on the screen.
        written: A folder of which `isentrope show` prints all; None where nothing was written.
    """

    room = math.inf
    written: Path | None = None

    @contextmanager
    def first_screen(self, room: float) -> Generator[None]:
        """A block that prints so many lines at most, besides conclusions."""
        self.room = room
        try:
            yield
        finally:
            is_full = self.room < 0
            folder = self.written
            self.room = math.inf
            self.written = None
            if is_full:
                # a command that runs, however long its folder makes the line
                show = "" if folder is None else f"isentrope show {shlex.quote(str(folder))} "
                say(f"  more         {show}--details prints the rest", self)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as many lines as there is room for, and no title of a table without a row."""
        with self.capture() as captured:
            super().print(*objects, **options)
        lines = captured.get().splitlines(keepends=True)
        if self.room < min(len(lines), _HEAD):
            self.room = -1
        for line in lines:
            self.room -= max(1, -(-len(line.rstrip()) // self.width))
            if self.room >= 0:
                self.file.write(line)
        self.file.flush()

    def write_document(self, content: Any) -> None:
        """Write JSON as it is, since a console counts lines; null for NaN and infinity."""
        self.file.write(json.dumps(finite(content), indent=1, allow_nan=False) + "\n")
        self.file.flush()

    def conclude(self, line: str, folder: Path | None = None) -> None:
        """Print a line that is on the first screen too.

        Args:
            line: The line.
            folder: What was written, if that is what it says.
        """
        room = self.room
        self.room = math.inf
        say(line, self)
        self.room = room
        self.written = folder or self.written


out = Results(width=_width(sys.stdout), emoji=False)
"""Results."""
err = _Console(stderr=True, width=_width(sys.stderr), emoji=False)
"""Progress, notes and errors."""


def say(text: Any, console: Console = out) -> None:
    """Print a line as it is: no markup, no colours, no line breaks."""
    console.print(str(text), markup=False, highlight=False, soft_wrap=True)


NO_BREAK = "\u00a0"
"""The space within a number of a sentence; a terminal gets one that can be searched for."""

_UNBOUNDED = 10_000
"""A width at which no table is shrunk."""


def show(console: Console, blocks: Iterable[Any]) -> None:
    """Print sentences, tables, lines and conclusions; a terminal breaks lines between words."""
    for block in blocks:
        if isinstance(block, Table):
            print_table(console, block)
        elif isinstance(block, Conclusion) and isinstance(console, Results):
            console.conclude(block.text, block.folder)
        else:
            text = block.text if isinstance(block, (Sentence, Conclusion)) else str(block)
            text = text.replace(NO_BREAK, " ")
            unbroken = not console.is_terminal
            console.print(text, markup=False, highlight=False, soft_wrap=unbroken)


def print_table(console: Console, table: Table) -> None:
    """Print a table with as many columns as there is room for."""
    columns = fitting(console, table)
    console.print(_rich(table, columns, escape(table.title)))
    omitted = [column.title for column in table.columns if column not in columns]
    if omitted:
        say(f"  not shown    {', '.join(omitted)}: a wider terminal has room for them", console)


def fitting(console: Console, table: Table) -> list[Column]:
    """The columns that there is room for, in their order."""
    columns = table.columns
    unbounded = console.options.update(max_width=_UNBOUNDED)
    fitted = {k for k, column in enumerate(columns) if column.rank == 0}
    for k in sorted(range(len(columns)), key=lambda k: columns[k].rank):
        candidates = [column for j, column in enumerate(columns) if j in fitted | {k}]
        untitled = _rich(table, candidates, None)  # a title is broken where it has to be
        if console.measure(untitled, options=unbounded).maximum <= console.width:
            fitted.add(k)
    return [column for k, column in enumerate(columns) if k in fitted]


def _rich(table: Table, columns: Sequence[Column], title: str | None) -> RichTable:
    printed = RichTable(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in columns:
        printed.add_column(
            column.title, justify="left" if column.left else "right", overflow="fold"
        )
    cells = zip(*(table.cells(column) for column in columns), strict=True)
    for k, row in enumerate(cells):
        printed.add_row(*map(escape, row), end_section=k in table.sections)
    return printed
