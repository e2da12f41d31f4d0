"""Derivatives of a function of one number by forward mode: (f, f', f'') at 0 in one evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isentrope.nouns.norms import NormsWrittenOut


def derivatives_at_zero(
    function: Callable[[Tensor], Any], order: int, device: torch.device | str = "cpu"
) -> tuple[Any, ...]:
    """Value and derivatives of f(e) at e = 0.

    At second order normalisation is written out, because torch's own derivative of it is wrong
    there (`norms`).

    Args:
        function: Maps a float64 scalar tensor to a tensor or a tuple of tensors.
        order: Highest derivative, 1 or 2 (forward over forward).
        device: Where e lives.

    Returns:
        (f, f') or (f, f', f''), each shaped like the function's result.

    Raises:
        ValueError: If `order` is not 1 or 2.
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {order}.")
    zero = torch.zeros((), dtype=torch.float64, device=device)
    one = torch.ones_like(zero)

    def with_slope(e: Tensor) -> Any:
        return torch.func.jvp(function, (e,), (one,))

    if order == 1:
        return with_slope(zero)
    with NormsWrittenOut():
        result: Any = torch.func.jvp(with_slope, (zero,), (one,))
    (value, first), (_, second) = result
    return value, first, second
