"""The keys of configurations, and the sentence on one that is wrong (`config.io` reads them)."""

import types
import typing
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from pydantic import BaseModel, ValidationError

from isentrope.config.measure import ELSEWHERE, MeasureConfig
from isentrope.config.strict_yaml import brief, shortened


@dataclass(frozen=True)
class FormerKey:
    """A key that earlier versions had.

    Attributes:
        successor: What does its work now, the end of a sentence on it.
        idle: Its value that did nothing, which is read as if the key were not there.
    """

    successor: str
    idle: Any


FORMER = {
    "analysis.momentum_steps": FormerKey(
        "momentum is attributed to past updates by python -m studies.past_updates, in a clone", 0
    ),
    "analysis.passes": FormerKey("it is called analysis.gradient_backend now", "hooks"),
    "fisher_kernel.sketch": FormerKey(
        "gradients are sketched from Python alone, by ise.fisher_kernel(…, sketch=ise.Sketch(32)); "
        "here fisher_kernel.storage and fisher_kernel.memory_gb save memory",
        None,
    ),
}
"""Every key that is gone, by its dotted name."""


def describe_error(error: ValidationError, root: type[BaseModel]) -> str:
    """The first complaint, an unknown key before others, as one sentence."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = shortened(".".join(map(str, _strip_union_parts(first["loc"], root))))
    if first["type"] == "extra_forbidden":
        nearest = _find_nearest_key(path, root)
        apart = f" ({nearest.replace('.', ': {')}: …}})" if nearest == path else ""
        sentence = f"Unknown key {path!r}: the nearest valid key is {nearest!r}{apart}"
        if path in FORMER:
            sentence = f"{path!r} is a key of earlier versions: {FORMER[path].successor}"
        elif first["loc"][-1] in ELSEWHERE:
            sentence = f"Unknown key {path!r}: docs/from_notes.md says what does its work here"
    elif first["type"] == "missing":
        sentence = f"The configuration needs {path!r}"
    elif first["type"] == "value_error":
        words = shortened(first["msg"].removeprefix("Value error, "), 500)
        sentence = f"{path}: {words}".removeprefix(": ")
    else:
        words = first["msg"].removeprefix("Input ")
        sentence = f"{path}: {words}, got {brief(first['input'])}"
    return f"{sentence.rstrip('.')}."


def _strip_union_parts(loc: tuple[int | str, ...], root: type[BaseModel]) -> list[int | str]:
    """The keys of a location, without the names that pydantic adds for the parts of a union."""
    model: type[BaseModel] | None = root
    keys: list[int | str] = []
    for key in loc:
        if model is None and isinstance(key, str):
            break
        keys.append(key)
        model = None if model is None else inner_model(model, key)
    return keys


def _find_nearest_key(path: str, root: type[BaseModel]) -> str:
    """The valid key most like an unknown one, in its last part before all."""
    unknown = path.lower()
    unknown_end = unknown.split(".")[-1]

    def likeness(key: str) -> float:
        valid = key.lower()
        ends = SequenceMatcher(None, valid.split(".")[-1], unknown_end).ratio()
        return SequenceMatcher(None, valid, unknown).ratio() + 2 * ends

    return max(all_keys(root), key=likeness)


def all_keys(model: type[BaseModel] = MeasureConfig, prefix: str = "") -> list[str]:
    """Every key that may be set, sections too, in the order of `isentrope config show`."""
    keys = []
    for name in model.model_fields:
        keys.append(prefix + name)
        inner = inner_model(model, name)
        keys += [] if inner is None else all_keys(inner, f"{prefix}{name}.")
    return [key for key in keys if key != "provenance"]


def inner_model(model: type[BaseModel], name: int | str) -> type[BaseModel] | None:
    """The section that a key holds, or None if it holds a value."""
    field = model.model_fields.get(str(name))
    kind = field.annotation if field else None
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
