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


def numbers_of_tokens(
    name: str, column: Sequence[Any], responses: Sequence[Tensor]
) -> list[Tensor]:
    """A column with one number per token.

    Args:
        name: Of the column.
        column: One list per response.
        responses: Their ids.

    Returns:
        float64 tensors, one per response.

    Raises:
        ValueError: If a list is not as long as its response.
    """
    return _like(name, [torch.as_tensor(x, dtype=torch.float64) for x in column], responses)


def masks(column: Sequence[Any], responses: Sequence[Tensor]) -> list[Tensor]:
    """Marks of the tokens that the policy drew.

    Args:
        column: One list per response.
        responses: Their ids.

    Returns:
        bool tensors, one per response.

    Raises:
        ValueError: If a list is not as long as its response, or marks none of it.
    """
    tensors = [torch.as_tensor(x, dtype=torch.bool) for x in column]
    for i, x in enumerate(_like("response_mask", tensors, responses)):
        if not bool(x.any()):
            raise ValueError(
                f"response_mask[{i}] is False throughout: the policy drew none of its tokens, "
                "so the response is no sample of it. Omit the response."
            )
    return tensors


def _like(name: str, tensors: list[Tensor], responses: Sequence[Tensor]) -> list[Tensor]:
    for i, (x, response) in enumerate(zip(tensors, responses, strict=True)):
        if x.shape != response.shape:
            raise ValueError(
                f"{name}[{i}] has {len(x)} values for a response of {len(response)} tokens."
            )
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
