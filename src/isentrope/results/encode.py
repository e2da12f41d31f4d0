"""Results as the content of a file.

A result is written as its dataclasses are: a field is a key, and an `Estimate` an object with all
of its fields. Some numbers lie flat, as they did before there were estimates, and some have a
second name (`results.names_of_notes`):

    FlatRow     a row whose columns are keys: delta_h, delta_h_se, …
    ByName      a dictionary of estimates that is one of numbers: NAME, NAME_se, …

JSON holds neither NaN nor infinity, so both are written as null. `results.decode` reads the content
again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from isentrope.nouns.columns import BY_NAME, ByName, FlatRow, declared, read_hint
from isentrope.results.names_of_notes import OF_THE_NOTES, AlsoAs
from isentrope.system.formatting import finite

adapter = cache(TypeAdapter)
"""The validator of a type."""
_hints = cache(partial(get_type_hints, include_extras=True))


def encode(content: Any) -> dict[str, Any]:
    """The content of a file."""
    kind = type(content)
    return finite(_flatten(kind, adapter(kind).dump_python(content, by_alias=True)))


def _flatten(hint: Any, content: Any) -> Any:
    """Content as it lies in a file."""
    kind, marks = read_hint(hint)
    content = change_parts(kind, content, _flatten)
    if content is None:
        return None
    if isinstance(kind, type) and issubclass(kind, FlatRow):
        content = _flatten_row(kind, content)
    for mark in marks:
        if isinstance(mark, ByName):
            content = _flatten_dictionary(content)
        elif isinstance(mark, AlsoAs):
            for name in mark.names:
                ours = OF_THE_NOTES[name]
                for key in [key for key in content if ours in key]:
                    content[key.replace(ours, name)] = content[key]
    return content


def _flatten_dictionary(estimates: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers by name; the degrees of freedom of a number without an interval are NaN."""
    content: dict[str, Any] = {}
    for name, estimate in estimates.items():
        for part, ending in BY_NAME.items():
            content[name + ending] = estimate[part]
        if estimate["degrees_of_freedom"] is None or not math.isfinite(estimate["ci_low"]):
            content[f"{name}_degrees_of_freedom"] = math.nan
    return content


def _flatten_row(rows: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it lies in a file.

    Args:
        rows: Its class.
        content: Its fields, with estimates as dictionaries.

    Returns:
        The same with a key for each part of an estimate; NaN for one that is not there.
    """
    remaining = dict(content)
    row: dict[str, Any] = {}
    for column in declared(rows):
        value = remaining.pop(column.name)
        for key, attribute in column.parts.items():
            row[key] = value if not attribute else math.nan if value is None else value[attribute]
    return row | remaining


def change_parts(kind: Any, content: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Content whose parts are changed, each with its type; a part without one stays."""
    if isinstance(content, Mapping):
        changed: Any = dict(content)
        keys: Any = content.keys()
    elif isinstance(content, list | tuple):
        changed = list(content)
        keys = range(len(content))
    else:
        return content
    for key in keys:
        part_kind = find_part_kind(kind, key)
        if part_kind is not None:
            changed[key] = change(part_kind, content[key])
    return changed


def find_part_kind(kind: Any, key: int | str) -> Any:
    """The type of a part of content of some type; None where the type has no such part."""
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return get_args(kind)[1]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return get_args(kind)[0]
    return _hints(kind).get(str(key)) if is_dataclass(kind) else None
