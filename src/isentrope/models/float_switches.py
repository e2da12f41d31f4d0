"""What torch rounds, set for a block and restored after it (T13).

`set_switches` sets torch's `fp32_precision` switches, reads them back, and restores them. They
form a tree, in which a switch without a value of its own follows its parent; afterwards all are as
before, whichever of torch's two interfaces set them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_SHORTER_THAN_FLOAT64 = (torch.float32, torch.float16, torch.bfloat16)


@contextmanager
def own_forward(*models: Any) -> Generator[None]:
    """A block in which models that accelerate prepared compute in their own types.

    Preparing a model for mixed precision puts its forward pass into `torch.autocast`, and only
    that of the outermost module: a part of it, called by itself, is computed without.

    Args:
        *models: Such models or others, which are not changed.

    Yields:
        Nothing.
    """
    prepared = [model for model in models if "_original_forward" in vars(model)]
    wrapped = [vars(model)["forward"] for model in prepared]
    try:
        for model in prepared:
            vars(model)["forward"] = model._original_forward
        yield
    finally:
        for model, forward in zip(prepared, wrapped, strict=True):
            vars(model)["forward"] = forward


_ROOT: Any = torch.backends
# cudnn is the parent of the next three
_CUDA = (_ROOT.cudnn, _ROOT.cudnn.conv, _ROOT.cudnn.rnn, _ROOT.cuda.matmul)
_ONEDNN = (_ROOT.mkldnn.matmul, _ROOT.mkldnn.conv, _ROOT.mkldnn.rnn)
_ONEDNN_PRECISION = {"highest": "ieee", "high": "tf32", "medium": "bf16"}


def matmul_switches() -> dict[str, str]:
    """What float32 matrix products may round their inputs to, by switch, as it stands now.

    Returns:
        "tf32" or "bf16" where they are shortened, "ieee" or "none" where they are not.
    """
    switches = {"cuda.matmul": _ROOT.cuda.matmul, "mkldnn.matmul": _ROOT.mkldnn.matmul}
    return {name: switch.fp32_precision for name, switch in switches.items()}


def set_switches(allow_tf32: bool, matmul_precision: str, stack: ExitStack) -> None:
    """Set every switch and read it back; leaving the stack restores them.

    Everything is first put to "ieee", parents before children. A child that then says something
    else has that value as its own, and one that says "ieee" needs no setting: so nothing is
    written back to a switch that followed its parent. "tf32" is then set in the same way.

    Raises:
        RuntimeError: If a switch does not stay where it was put.
    """

    def put(switches: Iterable[Any], value: str) -> None:
        for switch in switches:
            if (before := switch.fp32_precision) != value:
                stack.callback(setattr, switch, "fp32_precision", before)
                switch.fp32_precision = value

    cuda = "tf32" if allow_tf32 else "ieee"
    onednn = _ONEDNN_PRECISION[matmul_precision]
    put((_ROOT, *_CUDA, *_ONEDNN), "ieee")
    put((_ROOT, *_CUDA), cuda)
    if allow_tf32:
        for switch in _ONEDNN:
            follows_root = switch.fp32_precision == "tf32"
            stack.callback(setattr, switch, "fp32_precision", "none" if follows_root else "ieee")
            switch.fp32_precision = onednn
    precisions = [switch.fp32_precision for switch in (*_CUDA, *_ONEDNN)]
    if precisions != [cuda] * len(_CUDA) + [onednn] * len(_ONEDNN):
        raise RuntimeError(
            f"Switches of fp32_precision do not stay where they were set: {precisions}."
        )


class KeepFloat64(TorchFunctionMode):
    """Turn every request for float32 into one for float64.

    Normalisation layers, rotary angles and eager attention request float32 by name for inputs of
    any type; under this mode they compute in float64 instead.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        args = [torch.float64 if x is torch.float32 else x for x in args]
        if kwargs and kwargs.get("dtype") is torch.float32:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **(kwargs or {}))


class RoundingOperations(TorchDispatchMode):
    """Record every operation whose floating-point result is shorter than float64."""

    def __init__(self) -> None:
        super().__init__()
        self.rounded: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.dtype in _SHORTER_THAN_FLOAT64:
                self.rounded.append(f"{func} → {tensor.dtype}")
        return out
