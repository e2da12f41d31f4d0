"""Columns of rollouts, as a file or a caller gives them: converted to tensors, and checked.

Those of a file have their types, no nulls, and values in range. A reward may be null or nan: no
reward function applied to the response.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import compute
from torch import Tensor

from isentrope.nouns.vectors import tensor_bytes
from isentrope.system.errors import FileError
from isentrope.system.file_contents import read_arrow
from isentrope.system.reading import reading

_FLATTEN: Any = vars(compute)["list_flatten"]  # made when the module is imported
_IDS = pa.list_(pa.int64())
_NUMBERS = pa.list_(pa.float64())
TYPES = {
    "prompt_ids": _IDS,
    "response_ids": _IDS,
    "prompt_index": pa.int64(),
    "sampler_logprobs": _NUMBERS,
    "sampler_entropies": _NUMBERS,
    "rewards": pa.float64(),
    "advantages": pa.float64(),
    "prompt_keys": pa.string(),
    "references": pa.string(),
    "prompt_groups": pa.string(),
    "response_texts": pa.string(),
    "token_weights": _NUMBERS,
    "entropy_weights": _NUMBERS,
    "response_mask": pa.list_(pa.bool_()),
}
"""Every column, and what it holds."""

OF_TOKENS = ("response_mask", *(n for n, kind in TYPES.items() if kind == _NUMBERS))
"""Columns with one entry per token; the mask first, because the others are 0 where it is False."""

_ROUNDING = 1e-3
"""By which a log-probability may exceed 0, and an entropy be below it."""
_BOUNDS = {
    "prompt_ids": (0, 2**31),
    "response_ids": (0, 2**31),
    "prompt_index": (0, 2**53),
    "sampler_logprobs": (-1e300, _ROUNDING),
    "sampler_entropies": (-_ROUNDING, 1e300),
}


def read_rollout_columns(path: str | Path, cure: str) -> dict[str, Any]:
    """The columns of a rollouts file.

    Args:
        path: A parquet file.
        cure: What to do if it cannot be read, a sentence.

    Returns:
        The values by column.

    Raises:
        FileError: If a column is missing, unknown, or holds something else than it should.
    """
    table = read_arrow(path, cure)
    missing = {"prompt_ids", "response_ids", "prompt_index"} - set(table.column_names)
    unknown = set(table.column_names) - set(TYPES)
    if missing or unknown:
        raise FileError(
            f"{path} is not a rollouts file: missing {sorted(missing)}, unknown {sorted(unknown)}.",
        )
    with reading(path, cure):
        return {name: _check_values(name, table.column(name)) for name in table.column_names}


def _check_values(name: str, saved: Any) -> list[Any]:
    """The entries of a column, of the type that it has."""
    kind: Any = TYPES[name]
    try:
        column = saved.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"{name} holds {saved.type}, not {kind}") from error
    if name == "response_mask" and column.cast(saved.type) != saved:
        raise ValueError(f"{name} holds numbers besides 0 and 1")  # which would be true
    entries = _FLATTEN(column) if pa.types.is_list(kind) else column
    if name == "rewards":
        column = entries = column.fill_null(math.nan)
    if name != "references" and column.null_count + entries.null_count:
        raise ValueError(f"{name} has empty entries")
    if kind != pa.string():
        low, high = _BOUNDS.get(name, (-1e300, 1e300))
        numbers = entries.to_numpy()
        if name == "rewards":
            numbers = numbers[~np.isnan(numbers)]
        if not ((numbers >= low) & (numbers <= high)).all():
            raise ValueError(f"{name} holds a number that is not finite, or out of range")
    return column.to_pylist()


def token_ids(values: Tensor | Sequence[int], name: str) -> Tensor:
    """The ids of one text.

    Args:
        values: At least one integer, 0 or more.
        name: What messages call them.

    Returns:
        (l,) int64.

    Raises:
        ValueError: If they are anything else.
    """
    ids = torch.as_tensor(values, device="cpu")
    if ids.ndim != 1 or not len(ids) or ids.is_floating_point() or int(ids.min()) < 0:
        raise ValueError(
            f"{name} must be a non-empty 1-D tensor of token ids, 0 or more: got shape "
            f"{tuple(ids.shape)}, {ids.dtype}, the smallest {ids.unique()[:1].tolist()}."
        )
    return ids.to(torch.int64)


def prompt_of_each(prompts: Sequence[Any], index: Tensor) -> list[Tensor]:
    """The prompt of each sequence.

    Args:
        prompts: Ids of the prompt of each sequence, or of each prompt that `index` names.
        index: (n,) int64, the prompt draw of each sequence.

    Returns:
        n tensors; sequences of a draw have the same.

    Raises:
        ValueError: If a prompt is missing, or two sequences of a draw have different ones.
    """
    ids = [token_ids(p, f"prompt {i}") for i, p in enumerate(prompts)]
    if len(ids) != len(index):
        top = int(index.max())
        if top >= len(ids) or int(index.min()) < 0:
            raise ValueError(
                f"prompt_index points to prompt {top}, but there are {len(ids)} prompts."
            )
        ids = [ids[int(p)] for p in index]
    first: dict[int, int] = {}
    for i, group in enumerate(index.tolist()):
        j = first.setdefault(group, i)
        if not torch.equal(ids[i], ids[j]):
            raise ValueError(
                f"Sequences {j} and {i} share prompt_index {group} but have different prompts."
            )
    return ids


def of_tokens(name: str, column: Sequence[Any], responses: Sequence[Tensor]) -> list[Tensor]:
    """A column with one entry per token.

    Args:
        name: Of the column.
        column: One list per response.
        responses: Their ids.

    Returns:
        One tensor per response, bool for `response_mask` and else float64.

    Raises:
        ValueError: If a list is not as long as its response, or the policy drew none of a
            response's tokens.
    """
    dtype = torch.bool if name == "response_mask" else torch.float64
    tensors = [torch.as_tensor(values, dtype=dtype, device="cpu") for values in column]
    for i, (x, response) in enumerate(zip(tensors, responses, strict=True)):
        if x.shape != response.shape:
            raise ValueError(
                f"{name}[{i}] has {len(x)} values for a response of {len(response)} tokens."
            )
        if dtype == torch.bool and not bool(x.any()):
            raise ValueError(
                f"response_mask[{i}] is False throughout: the policy drew none of its tokens, "
                "so the response is no sample of it. Omit the response."
            )
    return tensors


def numbered(rows: Sequence[Tensor]) -> list[int]:
    """The number of each row in the order that rows first come; equal ones have the same."""
    number: dict[bytes, int] = {}
    return [number.setdefault(tensor_bytes(row), len(number)) for row in rows]
