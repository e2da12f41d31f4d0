"""Tables that fit the width of the console: columns are left out, numbers are never cut.

Each column has a rank. Columns of rank 0 are always there; the others are added in the order of
their ranks wherever there is room. A line below the table says which are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_UNBOUNDED = 10_000
"""A width at which no table is shrunk."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        cells: Its cells, as rich markup.
        rank: 0 for one that is always there; the larger, the earlier it is left out.
        left: Whether it is aligned to the left, as text is.
    """

    title: str
    cells: Sequence[str]
    rank: int = 0
    left: bool = False


def print_table(
    console: Console, title: str, columns: Sequence[Column], sections: Collection[int] = ()
) -> None:
    """Print a table with as many columns as there is room for."""
    kept = fitting(console, title, columns, sections)
    console.print(_table(title, kept, sections))
    omitted = [column.title for column in columns if column.title not in {k.title for k in kept}]
    if omitted:
        line = f"  not shown    {', '.join(omitted)}: a wider terminal has room for them"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def fitting(
    console: Console, title: str, columns: Sequence[Column], sections: Collection[int] = ()
) -> list[Column]:
    """The columns that there is room for, in their order.

    Args:
        console: Where they are to be printed.
        title: Above the table.
        columns: All columns.
        sections: Rows with a line below them.

    Returns:
        The columns of rank 0, and of the others as many as fit.
    """
    kept = {k for k, column in enumerate(columns) if column.rank == 0}
    for k in sorted(range(len(columns)), key=lambda k: columns[k].rank):
        tried = [column for j, column in enumerate(columns) if j in kept | {k}]
        if _width(console, _table(title, tried, sections)) <= console.width:
            kept.add(k)
    return [column for k, column in enumerate(columns) if k in kept]


def _table(title: str, columns: Sequence[Column], sections: Collection[int]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.title, justify="left" if column.left else "right", overflow="fold")
    cells: Any = zip(*(column.cells for column in columns), strict=True)
    for k, row in enumerate(cells):
        table.add_row(*row, end_section=k in sections)
    return table


def _width(console: Console, table: Table) -> int:
    """Columns that it takes to print a table without breaking a cell."""
    table.title = None  # a title is broken where it has to be
    return console.measure(table, options=console.options.update(max_width=_UNBOUNDED)).maximum
