"""What a reader returned, as structure and values, so that two readings can be compared."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

import isentrope
from isentrope.nouns.rollouts import Rollouts


def _parts_of_policy(policy: Any) -> Any:
    tokenizer, model = policy.tokenizer, policy.model
    scaling = [getattr(module, "scaling", None) for module in model.modules()]
    parameters = {name: x.detach() for name, x in model.named_parameters()}
    settings = {
        "names": list(policy.names),
        "scaling": [dict(x) for x in scaling if isinstance(x, dict)],
        "ends": sorted(policy.eos_token_ids),
    }
    if tokenizer is None:
        return settings | {"parameters": parameters}
    texts = [tokenizer(text)["input_ids"] for text in ("12+3=", "4-5", "0+6=789")]
    vocabulary = sorted(map(str, tokenizer.get_vocab().items()))
    return settings | {"texts": texts, "vocabulary": vocabulary, "parameters": parameters}


def content_of(value: Any) -> tuple[Any, Any]:
    """Structure and values of what was read.

    The structure is the names, types and shapes; for lists and tables the kinds of their items, not
    their number. A number that is not finite is part of the structure.
    """
    if isinstance(value, isentrope.Policy):
        value = _parts_of_policy(value)
    if isinstance(value, Rollouts):  # another number of sequences is another value
        columns = {f.name: getattr(value, f.name) for f in fields(value)}
        value = {name: _as_list(column) for name, column in columns.items()}
    if isinstance(value, torch.Tensor):
        finite = bool(torch.isfinite(value).all()) if value.is_floating_point() else True
        return ("tensor", str(value.dtype), tuple(value.shape), finite), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return content_of(value.tolist())
    if isinstance(value, pd.DataFrame):
        types = tuple((str(name), str(kind)) for name, kind in value.dtypes.items())
        return ("table", len(value) > 0, types), value.to_csv()
    if isinstance(value, bool) or value is None:
        return (type(value).__name__,), value
    if isinstance(value, (int, float, np.number)):
        return ("number", bool(np.isfinite(value))), repr(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "tables"}
    if isinstance(value, dict):
        parts = {str(key): content_of(x) for key, x in value.items()}
        structure = tuple((k, s) for k, (s, _) in sorted(parts.items()))
        return ("names", structure), {k: v for k, (_, v) in parts.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [content_of(x) for x in value]
        return ("list", frozenset(s for s, _ in parts)), [v for _, v in parts]
    if callable(value):
        return ("function",), None
    return (type(value).__name__,), str(value)


def _as_list(column: Any) -> Any:
    if isinstance(column, torch.Tensor):
        return column.tolist()
    return [_as_list(x) for x in column] if isinstance(column, list) else column


def within(found: Any, truth: Any) -> bool:
    """Whether a structure is the truth's, but for optional names that are missing or null."""
    if found == truth or ("NoneType",) in (found, truth):
        return True
    if found[0] != truth[0]:
        return False
    if found[0] == "number":
        return not found[1]  # null is a number that was withheld
    if found[0] == "names":
        known = dict(truth[1])
        return all(name in known and within(x, known[name]) for name, x in found[1])
    if found[0] == "list":
        return all(any(within(x, y) for y in truth[1]) for x in found[1])
    if found[0] == "table":
        return found[1] and {*found[2]} <= {*truth[2]}
    return False


def difference(found: Any, truth: Any, place: str = "") -> str:
    """The first place where two structures differ."""
    if found[0] == truth[0] == "names":
        ours, theirs = dict(found[1]), dict(truth[1])
        for name in {**theirs, **ours}:
            if name not in ours or name not in theirs:
                return f"{place}.{name} is {'missing' if name in theirs else 'new'}"
            if ours[name] != theirs[name]:
                return difference(ours[name], theirs[name], f"{place}.{name}")
    if found[0] == truth[0] == "list":
        for item in found[1]:
            if not any(within(item, x) for x in truth[1]):
                alike = [x for x in truth[1] if x[0] == item[0]]
                return difference(item, alike[0], f"{place}[]") if alike else f"{place}: {item}"
    if found[0] == truth[0] == "table":
        return f"{place}: {[*set(found[2]) ^ set(truth[2])]}"
    return f"{place}: {str(found)[:150]}, was {str(truth)[:150]}"
