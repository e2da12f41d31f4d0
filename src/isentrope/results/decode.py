"""The content of a results.json as a result: what `results.encode` made, read back.

Numbers that lie flat become estimates, and what they do not say is known of the whole result
(`Shared`). Null is NaN wherever the type of a field wants a number. Where it may be None, null is
None.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from isentrope.nouns.columns import BY_NAME, ByName, FlatRow, declared, read_hint
from isentrope.nouns.estimate import Estimate
from isentrope.results.encode import adapter, change_parts, find_part_kind
from isentrope.results.names_of_notes import with_our_names
from isentrope.system.errors import IsentropeError
from isentrope.system.reading import reading

T = TypeVar("T")

CURE = "Run the command that made it again."

_NUMBERS = {"value": math.nan, "se": math.nan, "ci_low": math.nan, "ci_high": math.nan}


class ResultsError(IsentropeError, ValueError):
    """A results.json that cannot be read."""


@dataclass(frozen=True)
class Shared:
    """What all flat numbers of a result have in common.

    Attributes:
        n: Prompt draws behind them.
        unit: Unit of the measured entropy.
        method: The estimator of the first order.
        confidence: Nominal coverage of intervals.
    """

    n: int = 0
    unit: str = ""
    method: str = ""
    confidence: float = 0.95

    @classmethod
    def from_content(cls, content: Any) -> Self:
        """What the content of a results.json says; it is checked later.

        Args:
            content: JSON as it was read.

        Returns:
            The numbers; defaults where the content is not that of a result.
        """
        try:
            estimator = content["estimator"]
            unit = estimator.get("unit") or content["entropy"][estimator["functional"]]["unit"]
            first = content["first_order"] or {}
            confidence = float(estimator["confidence"])
            return cls(
                n=int(content["batches"]["E"]["prompt_draws"]),
                unit=str(unit),
                method=str(first.get("method", "")),
                confidence=confidence if 0 < confidence < 1 else cls.confidence,
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


def decode(kind: type[T], content: object, path: Path) -> T:
    """Read back what `encode` made; numbers are not made of texts, nor texts of numbers.

    Args:
        kind: The type of what was made.
        content: JSON as it was read.
        path: The file that holds it, for messages.

    Returns:
        The content.

    Raises:
        ResultsError: If a key is missing, or its value has another type.
    """
    with reading(path, CURE):  # content may be nested too deeply
        content = with_our_names(content)
        content = _nest(Shared.from_content(content), kind, content)
    try:
        try:
            return adapter(kind).validate_json(json.dumps(content))
        except ValidationError as error:
            _put_nan(content, error)
            return adapter(kind).validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(_keys(kind, first["loc"])) or "its content"
        fault = "is missing" if first["type"] == "missing" else f"is wrong ({first['msg']})"
        raise ResultsError(f"{path}: {key} {fault}. {CURE}") from error


def _put_nan(content: Any, error: ValidationError) -> None:
    """Put NaN where a number is wanted and the file has null: pydantic says where that is."""
    for problem in error.errors(include_url=False):
        if problem["type"] == "float_type" and problem["input"] is None:
            *path, last = problem["loc"]
            reduce(getitem, path, content)[last] = math.nan


def _nest(shared: Shared, hint: Any, content: Any) -> Any:
    """Content of a file as pydantic reads it; what is no such content stays, and it says so."""
    kind, marks = read_hint(hint)
    if isinstance(content, Mapping):
        for mark in marks:
            if isinstance(mark, ByName):
                content = nest_dictionary(mark, content, shared)
        if isinstance(kind, type) and issubclass(kind, FlatRow):
            content = _nest_row(kind, content, shared)
    return change_parts(kind, content, partial(_nest, shared))


def nest_dictionary(mark: ByName, content: Mapping[str, Any], shared: Shared) -> dict[str, Any]:
    """The estimates again; parts of one as they are where they cannot be read."""
    estimates: dict[str, Any] = {}
    for name in content:
        if name.endswith(("_se", "_degrees_of_freedom")):
            continue
        parts: dict[str, Any] = {}
        for part, ending in BY_NAME.items():
            if name + ending in content:
                part_content = content[name + ending]
                parts[part] = math.nan if part_content is None else part_content
        if {*map(type, parts.values())} <= {int, float} and "se" in parts:
            parts = vars(_read_estimate(mark, parts, shared))
        estimates[name] = parts
    return estimates


def _read_estimate(mark: ByName, parts: Mapping[str, float], shared: Shared) -> Estimate:
    value = parts["value"]
    unit = f"{shared.unit} {mark.unit}"
    if parts["se"] == 0:  # the step has no such component
        return Estimate.exact(value, shared.n, unit=unit, method=shared.method)
    return Estimate.from_standard_error(
        value,
        parts["se"],
        shared.n,
        unit=unit,
        method=shared.method,
        confidence=shared.confidence,
        degrees_of_freedom=parts.get("degrees_of_freedom"),
    )


def _nest_row(rows: type[FlatRow], content: Mapping[str, Any], shared: Shared) -> dict[str, Any]:
    """The fields of a row that lies flat.

    Args:
        rows: Its class.
        content: The row as it was read.
        shared: What it does not say.

    Returns:
        Its fields; a part of an estimate that is missing in the file is missing here too.
    """
    remaining = dict(content)
    row: dict[str, Any] = {}
    for column in declared(rows):
        parts: dict[str, Any] = {}
        for key, attribute in column.parts.items():
            if key in remaining:
                parts[attribute] = remaining.pop(key)
        if "" in parts:
            row[column.name] = parts[""]
        elif column.nullable and parts.get("value", 0) is None:
            row[column.name] = None
        elif parts:
            method = content.get("method", "")
            estimate: dict[str, Any] = {"n": shared.n, "method": method}
            estimate["unit"] = rows.estimates_in or shared.unit
            for attribute in _NUMBERS.keys() - column.parts.values():
                estimate[attribute] = math.nan
            if column.defaulted:  # files of earlier versions may lack a part
                estimate |= _NUMBERS
            for attribute, number in parts.items():
                estimate[attribute] = math.nan if number is None else number
            row[column.name] = estimate
    return remaining | row


def _key_in_row(rows: type, name: object, part: str) -> str | None:
    """The key of a part of an estimate in a row; None where the field is no estimate."""
    for column in declared(rows):
        if column.name == name and column.kind is Estimate:
            for key, attribute in column.parts.items():
                if attribute == part:
                    return key
            return part
    return None


def _keys(hint: Any, place: Sequence[int | str]) -> list[str]:
    """The keys of a file that lead to a place in what it was read as."""
    if not place:
        return []
    kind, marks = read_hint(hint)
    first, *inner = place
    part = str(inner[0]) if inner else "value"
    for mark in marks:
        if isinstance(mark, ByName):
            return [str(first) + BY_NAME.get(part, "")]
    if isinstance(kind, type) and issubclass(kind, FlatRow):
        key = _key_in_row(kind, first, part)
        if key is not None:
            return [key]
    return [str(first), *_keys(find_part_kind(kind, first), inner)]
