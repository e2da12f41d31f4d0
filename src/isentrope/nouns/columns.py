"""Columns of tables, declared once: on the fields of the rows.

    @dataclass(frozen=True)
    class Row:
        eta: Annotated[float, Column("η")]
        change: Annotated[Estimate, Column("ΔH ± se", key="delta_h", interval=1)]
        carriers: Annotated[float, Column()] = math.nan

A column is a line. `printed_columns` says what of it is printed; `nouns.tables` makes the table of
such rows, and says what its file may hold. An `Estimate` takes a column for each of its parts, and
a dictionary of numbers one for each of them. A field with a default may be missing in files of
earlier versions, and the columns of one that is `Absent` are left out where no row has it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, fields, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate
from isentrope.system.formatting import TERMINAL, known

KEY = "(key)"
"""In place of an attribute: the key of a row, its place where rows have none."""

INTERVAL = "interval"
"""The form of an estimate of which the interval is shown."""

Parts = tuple[tuple[str, str], ...]
"""Attributes of an estimate that a table has, and how the names of their columns end."""

WITH_INTERVAL: Parts = tuple(ESTIMATE_COLUMNS.items())
WITH_ERROR: Parts = WITH_INTERVAL[:2]
WITH_PROMPTS: Parts = (*WITH_INTERVAL, ("n", "_prompts"))
WITH_WARNINGS: Parts = (*WITH_PROMPTS, ("warnings", "_warnings"))
AFTER_UNIT: Parts = (("unit", "_unit"), *WITH_INTERVAL)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading in print; a declared column without one is in files alone.
        value: An attribute of a row (an entry of a mapping or tuple), `KEY`, or a function of it.
            A declared column has its own field where this is `KEY`.
        rank: 0 for one that is always printed; the larger, the earlier it is left out.
        left: Whether it is aligned to the left, as text is.
        form: How a number is formatted, such as ".2f"; three digits if empty, and an estimate with
            its error. `INTERVAL` shows the interval of an estimate.
        key: Its name in files; that of the field if None. Without a name (""), an estimate has
            columns value, se, ci_low and ci_high.
        parts: What files hold of an estimate.
        interval: Rank of a printed column with the interval; None for none.
    """

    title: str = ""
    value: str | int | Callable[[Any], object] = KEY
    rank: int = 0
    left: bool = False
    form: str = ""
    key: str | None = None
    parts: Parts = WITH_INTERVAL
    interval: int | None = None

    def cell(self, key: object, row: Any) -> str:
        """The cell of a row."""
        value = self.value
        if callable(value):
            content = value(row)
        elif value == KEY:
            content = key
        elif isinstance(row, Mapping):
            content = row.get(value)
        else:
            content = row[value] if isinstance(value, int) else getattr(row, value)
        return text(content, self.form)


def text(value: Any, form: str = "") -> str:
    """A cell, such as "-2.24 ± 0.1" for an estimate; a dash where there is nothing."""
    if isinstance(value, Estimate):
        if form == INTERVAL:
            return ends(value)
        if form:
            return text(value.value, form)
        return TERMINAL.with_error(known(value.value), value.se)
    if value is None or isinstance(value, float):
        number = known(value)
        return format(number, form) if form and number is not None else TERMINAL.number(number)
    return str(value)


def ends(estimate: Estimate) -> str:
    """The interval of an estimate."""
    return TERMINAL.interval(estimate.ci_low, estimate.ci_high)


class FlatRow:
    """A row whose declared columns are its keys in results.json too.

    Attributes:
        estimates_in: Unit of its estimates, which the keys do not say; empty for that of the
            measured entropy.
    """

    estimates_in: ClassVar[str] = ""


@dataclass(frozen=True)
class ByName:
    """Mark of a dictionary of estimates that results.json has as one of numbers.

    Attributes:
        unit: Unit of the numbers, after that of the measured entropy.
    """

    unit: str


BY_NAME = {"value": "", "se": "_se", "degrees_of_freedom": "_degrees_of_freedom"}
"""Attributes of an estimate in such a dictionary, and how their keys end."""


@dataclass(frozen=True)
class Declared:
    """A column as a class of rows declares it.

    Attributes:
        name: The field.
        column: What is said of it.
        kind: Type of its values.
        key: Its name in files.
        parts: Attributes of an estimate by the names of their columns; of another value "" by its
            key, and nothing of a dictionary, which brings its own names.
        nullable: Whether a row may have none.
        defaulted: Whether a file may lack it.
        absent: Whether a table lacks it where no row has a value.
    """

    name: str
    column: Column
    kind: Any
    key: str
    parts: Mapping[str, str]
    nullable: bool
    defaulted: bool
    absent: bool


DICTIONARY = dict[str, float]
"""Type of a field whose every entry is a column."""


@cache
def declared(rows: type) -> tuple[Declared, ...]:
    """The columns that a dataclass declares, in the order of its fields."""
    hints = get_type_hints(rows, include_extras=True)
    columns: list[Declared] = []
    for field in fields(rows):
        kind, marks = read_hint(hints[field.name])
        for mark in marks:
            if isinstance(mark, Column):
                columns.append(_declare(field, kind, marks, mark))
    return tuple(columns)


def _declare(field: Field[Any], kind: Any, marks: list[Any], column: Column) -> Declared:
    key = field.name if column.key is None else column.key
    parts = {} if kind == DICTIONARY else {key: ""}
    if kind is Estimate:
        parts = {}
        for attribute, ending in column.parts:
            parts[key + ending if key else ending.removeprefix("_") or attribute] = attribute
    absent = False
    for mark in marks:
        absent = absent or (isinstance(mark, FieldInfo) and mark.exclude_if is not None)
    return Declared(
        name=field.name,
        column=column,
        kind=kind,
        key=key,
        parts=parts,
        nullable=None in marks,
        defaulted=field.default is not NO_DEFAULT or field.default_factory is not NO_DEFAULT,
        absent=absent,
    )


def read_hint(hint: Any) -> tuple[Any, list[Any]]:
    """The type of a value, and what is said of it; None is among that where there may be none."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *annotations = get_args(hint)
        kind, marks = read_hint(inner)
        return kind, [*marks, *annotations]
    if origin in (Union, UnionType):
        kind, marks = read_hint(get_args(hint)[0])
        return kind, [*marks, None] if type(None) in get_args(hint) else marks
    return (str if origin is Literal else hint), []


def printed_columns(rows: type, interval: str = "interval") -> Iterator[Column]:
    """The columns of a class of rows that have a heading.

    Args:
        rows: The class.
        interval: The heading of intervals.

    Yields:
        Each, and after it its interval, where that is printed.
    """
    for field in declared(rows):
        column = field.column
        if not column.title:
            continue
        column = replace(column, value=field.name) if column.value == KEY else column
        yield column
        if column.interval is not None:
            yield Column(interval, field.name, column.interval, form=INTERVAL)
