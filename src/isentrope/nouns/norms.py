"""Layer normalisation in elementary operations, where torch's own second derivative is wrong.

    y = (x − mean x) · (var x + ε)^(−1/2) · weight + bias          (variance with 1/n)

Forward mode over forward mode treats the mean and the deviation that `layer_norm` saves as
constants. So its second derivative by x is wrong by tens of per cent, without an error; first
derivatives and backward over backward are correct, and so are `group_norm` and `rms_norm`.
docs/stability.md has a reproduction, tests/nouns/test_forward_mode.py the survey of other
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class NormsWrittenOut(TorchFunctionMode):
    """Replace every call of `layer_norm` by its formula.

    It intercepts calls from Python, not those of a scripted or compiled module.
    """

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Call the formula in place of `layer_norm`, else `func`."""
        of_layers = func in (functional.layer_norm, torch.layer_norm)
        return (_layer_norm if of_layers else func)(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """In float32 at least, as torch's kernels compute it."""
    dims = list(range(-len(normalized_shape), 0))
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(input.dtype)
