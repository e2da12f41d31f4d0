"""Every number of a result that has an error, by its place in results.json.

first_order     sweep[0.001].delta_h     tried.clip_cov@1.step.delta_h     budget.momentum
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass

from isentrope.estimators.sweep import RateRow
from isentrope.nouns.columns import FlatRow, declared
from isentrope.nouns.estimate import Estimate
from isentrope.results.attributions import EntropyRecord
from isentrope.results.result import Result

_NOT_NUMBERS = {"checks", *(field.name for field in fields(Result))}

_WHOLE = tuple(field.name for field in fields(Estimate))
"""Attributes of an estimate that is written with all of them."""

Number = tuple[str, Estimate, Collection[str]]
"""The dotted path of a number, the number, and the attributes of it that its file has."""


def numbers_in(content: Mapping[str, object], path: str = "") -> Iterator[Number]:
    """Every number that has an error.

    Args:
        content: The fields of a result, or of a part of it.
        path: Where the part is.

    Yields:
        Each, the same of a result that was just made and of one that was read: a number of a flat
        row has the attributes that are in its file, and n and unit. So has k with k_se beside it.
    """
    for key, value in content.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, Estimate):
            yield place, value, _WHOLE
        elif place in _NOT_NUMBERS:
            continue
        elif isinstance(value, tuple):
            for row in value:
                if isinstance(row, RateRow | EntropyRecord):
                    yield from _of_row(row, f"{place}{row.place}")
        elif isinstance(value, Mapping):
            yield from numbers_in(value, place)
        elif is_dataclass(value):
            yield from numbers_in(vars(value), place)
        elif isinstance(value, float) and f"{key}_se" in content:
            se = content[f"{key}_se"]
            if isinstance(se, float):
                yield place, Estimate(value, se, math.nan, math.nan, 0, "", ""), ("value", "se")


def _of_row(row: object, path: str) -> Iterator[Number]:
    remaining = dict(vars(row))
    if isinstance(row, FlatRow):
        for column in declared(type(row)):
            estimate = remaining.pop(column.name)
            if isinstance(estimate, Estimate):
                yield f"{path}.{column.key}", estimate, (*column.parts.values(), "n", "unit")
    yield from numbers_in(remaining, path)
