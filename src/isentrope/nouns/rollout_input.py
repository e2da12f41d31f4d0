"""Columns of rollouts as a caller gives them, converted to tensors and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def token_ids(values: Tensor | Sequence[int], what: str) -> Tensor:
    """The ids of one text.

    Args:
        values: At least one integer, 0 or more.
        what: Of what, for messages.

    Returns:
        (l,) int64.

    Raises:
        ValueError: If they are anything else.
    """
    ids = torch.as_tensor(values)
    if ids.ndim != 1 or ids.numel() == 0 or ids.is_floating_point():
        raise ValueError(
            f"{what} must be a non-empty 1-D tensor of token ids, got shape {tuple(ids.shape)} "
            f"and dtype {ids.dtype}."
        )
    if int(ids.min()) < 0:
        raise ValueError(f"{what} has the token id {int(ids.min())}: ids are 0 or more.")
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
    found = [token_ids(p, f"prompt {i}") for i, p in enumerate(prompts)]
    if len(found) != len(index):
        top = int(index.max())
        if top >= len(found) or int(index.min()) < 0:
            raise ValueError(
                f"prompt_index points to prompt {top}, but there are {len(found)} prompts."
            )
        found = [found[int(p)] for p in index]
    first: dict[int, int] = {}
    for i, group in enumerate(index.tolist()):
        j = first.setdefault(group, i)
        if not torch.equal(found[i], found[j]):
            raise ValueError(
                f"Sequences {j} and {i} share prompt_index {group} but have different prompts."
            )
    return found


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
    is_mask = name == "response_mask"
    tensors: list[Tensor] = []
    for i, (values, response) in enumerate(zip(column, responses, strict=True)):
        x = torch.as_tensor(values, dtype=torch.bool if is_mask else torch.float64)
        if x.shape != response.shape:
            raise ValueError(
                f"{name}[{i}] has {len(x)} values for a response of {len(response)} tokens."
            )
        if is_mask and not bool(x.any()):
            raise ValueError(
                f"response_mask[{i}] is False throughout: the policy drew none of its tokens, "
                "so the response is no sample of it. Omit the response."
            )
        tensors.append(x)
    return tensors


def numbers(name: str, column: Any, n: int) -> Tensor:
    """A column with one number per sequence.

    Args:
        name: Of the column.
        column: n finite numbers.
        n: How many sequences there are.

    Returns:
        (n,) float64.

    Raises:
        ValueError: If they are anything else.
    """
    tensor = torch.as_tensor(column, dtype=torch.float64)
    if tensor.shape != (n,) or not bool(tensor.isfinite().all()):
        raise ValueError(
            f"{name} must be {n} finite numbers, got {tuple(tensor.shape)} "
            f"with {int((~tensor.isfinite()).sum())} not finite."
        )
    return tensor
