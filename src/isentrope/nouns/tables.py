"""Tables of rows that declare their columns (`nouns.columns`), and what their files may hold."""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

import pandas as pd

from isentrope.nouns.columns import DICTIONARY, declared
from isentrope.nouns.estimate import Estimate
from isentrope.system.file_contents import TableSchema

_ARROW: dict[Any, str] = {
    float: "double",
    int: "int64",
    str: "string",
    bool: "bool",
    list[int]: "list<int64>",
    list[float]: "list<double>",
}
"""Type of a column by that of its values."""
_OF_PARTS = {"n": "int64", "unit": "string?", "method": "string", "warnings": "string"}
"""Type of a part of an estimate that is not a number with a fraction."""


def columns_of(row: object) -> dict[str, Any]:
    """The values of a row by column; NaN for a number that is not there.

    Args:
        row: A dataclass that declares columns.

    Returns:
        Values as a table holds them: the sentences of an estimate are one text.
    """
    values: dict[str, Any] = {}
    for column in declared(type(row)):
        value = getattr(row, column.name)
        if column.kind == DICTIONARY:
            values |= value
        for name, attribute in column.parts.items():
            if value is None:
                values[name] = math.nan if column.kind in (float, Estimate) else None
            else:
                values[name] = getattr(value, attribute) if attribute else value
            if attribute == "warnings":
                values[name] = " ".join(values[name])
    return values


def frame(rows: Iterable[object]) -> pd.DataFrame:
    """The table of rows of one class.

    Args:
        rows: One or more dataclasses that declare columns.

    Returns:
        A row each; without the columns of `Absent` fields that no row has.
    """
    rows = list(rows)
    table = pd.DataFrame([*map(columns_of, rows)])
    for column in declared(type(rows[0])):
        if column.absent and {*map(attrgetter(column.name), rows)} == {None}:
            table = table.drop(columns=[*column.parts])
    return table


def frame_of_columns(rows: type, columns: Mapping[str, Any]) -> pd.DataFrame:
    """The table of many rows that are at hand as columns.

    Args:
        rows: The class that declares the columns.
        columns: Values by column; without those that the rows do not have.

    Returns:
        The columns in their order.

    Raises:
        ValueError: If a column is not declared, or one is missing that every such table has.
    """
    table: dict[str, Any] = {}
    for column in declared(rows):
        for name in column.parts:
            if name in columns:
                table[name] = columns[name]
            elif not (column.defaulted or column.absent):
                raise ValueError(f"The table of {rows.__name__} has no column {name!r}.")
    for name in columns:
        if name not in table:
            raise ValueError(f"{rows.__name__} declares no column {name!r}.")
    return pd.DataFrame(table)


@cache
def table_schema(rows: type) -> TableSchema:
    """What a file with the table of a class of rows holds."""
    types: dict[str, str] = {}
    optional: set[str] = set()
    other_type = None
    for column in declared(rows):
        if column.kind == DICTIONARY:
            other_type = "double"
        for name, attribute in column.parts.items():
            kind = _OF_PARTS.get(attribute, "double") if attribute else _ARROW[column.kind]
            may_be_null = column.nullable and not column.absent and kind != "double"
            types[name] = kind.removesuffix("?") + "?" if may_be_null else kind
        if column.defaulted or column.absent:
            optional.update(column.parts)
    return TableSchema(types, frozenset(optional), other_type)
