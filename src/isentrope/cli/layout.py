"""Tables that fit the width of the console: columns are left out, numbers are never cut.

Each column has a rank. Columns of rank 0 are always there; the others are added in the order of
their ranks wherever there is room. A line below the table says which are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from isentrope.cli.console import say
from isentrope.verbs.printed import Column, Table

_UNBOUNDED = 10_000
"""A width at which no table is shrunk."""


def show(console: Console, printed: Iterable[Table | str], notes: Iterable[str] = ()) -> None:
    """Print tables and lines, then what limits the use of the numbers."""
    for block in printed:
        if isinstance(block, Table):
            print_table(console, block)
        else:
            say(block, console)
    for sentence in notes:
        say(f"  note         {sentence}", console)


def print_table(console: Console, table: Table) -> None:
    """Print a table with as many columns as there is room for."""
    kept = fitting(console, table)
    console.print(_rich(table, kept, table.title))
    omitted = [column.title for column in table.columns if column not in kept]
    if omitted:
        say(f"  not shown    {', '.join(omitted)}: a wider terminal has room for them", console)


def fitting(console: Console, table: Table) -> list[Column]:
    """The columns that there is room for, in their order."""
    columns = table.columns
    kept = {k for k, column in enumerate(columns) if column.rank == 0}
    for k in sorted(range(len(columns)), key=lambda k: columns[k].rank):
        tried = [column for j, column in enumerate(columns) if j in kept | {k}]
        # without a title, which is broken where it has to be
        if _width(console, _rich(table, tried, None)) <= console.width:
            kept.add(k)
    return [column for k, column in enumerate(columns) if k in kept]


def _rich(table: Table, columns: Sequence[Column], title: str | None) -> RichTable:
    made = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(column.title, justify="left" if column.left else "right", overflow="fold")
    cells = zip(*(table.cells(column) for column in columns), strict=True)
    for k, row in enumerate(cells):
        made.add_row(*map(escape, row), end_section=k in table.sections)
    return made


def _width(console: Console, table: RichTable) -> int:
    """Columns that it takes to print a table without breaking a cell."""
    return console.measure(table, options=console.options.update(max_width=_UNBOUNDED)).maximum
