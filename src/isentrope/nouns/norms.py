"""Normalisation in elementary operations, where torch's own second derivative is wrong.

    y = (x − mean x) · (var x + ε)^(−1/2) · weight + bias          (variance with 1/n)

Forward mode over forward mode treats the mean and the deviation that `layer_norm` saves as
constants. So its second derivative by x is wrong by tens of per cent, without an error; first
derivatives and backward over backward are correct. `batch_norm` and `instance_norm` with the
statistics of their input are wrong in the same way; `group_norm` and `rms_norm` are correct.
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
    """Replace every call of such a normalisation by its formula.

    It intercepts calls from Python, not those of a scripted or compiled module.
    """

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Call the formula for `func` if there is one, else `func`."""
        return _FORMULAS.get(func, func)(*args, **(kwargs or {}))


def _standardised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean)·rstd, mean and rstd over `dims`, in float32 at least, as torch's kernels do."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    return centred * rstd, mean, rstd


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = _standardised(input, list(range(-len(normalized_shape), 0)), eps)
    return _scaled(y, weight, bias).to(input.dtype), mean, rstd


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


def _of_channels(
    x: Tensor, dims: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    shape = (1, -1, *[1] * (x.dim() - 2))
    weight, bias = (None if c is None else c.view(shape) for c in (weight, bias))
    return _scaled(_standardised(x, dims, eps)[0], weight, bias).to(x.dtype)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Running statistics, which torch differentiates correctly, are read and never written."""
    if not training:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    return _of_channels(input, [0, *range(2, input.dim())], weight, bias, eps)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return functional.instance_norm(
            input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    return _of_channels(input, list(range(2, input.dim())), weight, bias, eps)


_ATEN: Any = torch.ops.aten
_FORMULAS: dict[Any, Callable] = {
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    **dict.fromkeys(
        (functional.layer_norm, torch.layer_norm, _ATEN.layer_norm, _ATEN.layer_norm.default),
        _layer_norm,
    ),
    **dict.fromkeys(
        (
            torch.native_layer_norm,
            _ATEN.native_layer_norm,
            _ATEN.native_layer_norm.default,
        ),
        _native_layer_norm,
    ),
}
