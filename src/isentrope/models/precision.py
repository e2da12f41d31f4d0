"""Numerical precision as one explicit object (T13).

Three policies: "float64" (no operation of the model may round to a shorter type), "float32"
(float32 model, float64 log-softmax and entropies, TF32 off) and "bfloat16" (speed only;
never for ΔH); and "as_is", which keeps the types of a model in training. `Precision.active` sets
torch's `fp32_precision` switches, reads them back, and restores them. They form a tree, in which a
switch without a value of its own follows its parent; afterwards all are as before, whichever of
torch's two interfaces set them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
AUTOCAST_FIELDS = {"bf16": "bfloat16", "fp16": "float16"}
"""Fields of a trainer's arguments that ask for autocast, and its type."""
AS_IS = "as_is"
_SHORTER_THAN_FLOAT64 = (torch.float32, torch.float16, torch.bfloat16)

_CHOICES = {
    "runtime_dtype": (*DTYPES, AS_IS),
    "entropy_dtype": tuple(DTYPES),
    "matmul_precision": ("highest", "high", "medium"),
    "autocast": (*AUTOCAST, None),
}


@dataclass(frozen=True)
class RoundingBounds:
    """What rounding in a type explains: a larger difference has another cause.

    Attributes:
        derivative: Between two ways to one derivative, as a part of the size of the terms added.
        logprob: Between two evaluations of one token's log-probability, nats.
        log_weight: Of a sequence's log-weight, nats, where changes of entropy are measured.
    """

    derivative: float
    logprob: float
    log_weight: float


ROUNDING_BOUNDS = {
    torch.float64: RoundingBounds(derivative=1e-6, logprob=1e-9, log_weight=1e-10),
    torch.float32: RoundingBounds(derivative=4e-4, logprob=1e-3, log_weight=1e-4),
    torch.bfloat16: RoundingBounds(derivative=0.1, logprob=0.3, log_weight=0.0),
}
"""By the shortest type in use. Those of bfloat16 hold for float16 too."""


def rounding_bounds(types: Iterable[torch.dtype]) -> RoundingBounds:
    """What rounding explains where these types are used together.

    Args:
        types: At least one.

    Returns:
        The bounds of the shortest.
    """
    shortest = max(types, key=lambda dtype: torch.finfo(dtype).eps)
    return ROUNDING_BOUNDS.get(shortest, ROUNDING_BOUNDS[torch.bfloat16])


@dataclass(frozen=True)
class Precision:
    """How numbers are kept.

    Attributes:
        runtime_dtype: Type of the model's parameters and activations; "as_is" leaves them.
        entropy_dtype: Type of log-softmax and entropies.
        allow_tf32: Let matrix products on GPUs round their inputs to 10 bits. Off by default.
        matmul_precision: The same for matrix products of oneDNN, on CPUs: "highest" keeps float32,
            "high" allows TF32, "medium" bfloat16.
        autocast: Type in which `torch.autocast` takes the products of a gradient by reverse mode,
            as mixed-precision training does; None for none. Scores are never taken under it.
    """

    runtime_dtype: str = "float64"
    entropy_dtype: str = "float64"
    allow_tf32: bool = False
    matmul_precision: str = "highest"
    autocast: str | None = None

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            if (value := getattr(self, field)) not in choices:
                raise ValueError(
                    f"{field}={value!r}; choose one of {', '.join(map(str, choices))}."
                )
        if self.autocast is not None and self.runtime_dtype == "float64":
            raise ValueError("autocast does not act on a model in float64: use float32.")
        if self.matmul_precision != "highest" and not self.allow_tf32:
            raise ValueError(
                f"matmul_precision={self.matmul_precision!r} turns TF32 back on although "
                'allow_tf32 is false: use "highest", or set allow_tf32=True.'
            )

    @classmethod
    def named(cls, precision: str | Precision) -> Precision:
        """The policy called "float64", "float32", "bfloat16" or "as_is", or `precision` itself.

        Args:
            precision: A name or a ready object.

        Returns:
            The precision object.
        """
        return precision if isinstance(precision, Precision) else cls(runtime_dtype=precision)

    @property
    def runtime(self) -> torch.dtype | None:
        """The model's torch dtype; None to leave it."""
        return DTYPES.get(self.runtime_dtype)

    @property
    def rounding(self) -> str | None:
        """Type of 16 bits that the products of a gradient are rounded to; None for none."""
        return self.autocast or ("bfloat16" if self.runtime_dtype == "bfloat16" else None)

    @property
    def entropy(self) -> torch.dtype:
        """The torch dtype of log-softmax and entropies."""
        return DTYPES[self.entropy_dtype]

    @contextmanager
    def active(self, *, forward_mode: bool = True) -> Generator[None]:
        """Run a block under these switches, and restore what was set before.

        Attention runs as plain matrix products (the "math" kernel): it has forward-mode
        derivatives, is deterministic, and keeps float64.

        Args:
            forward_mode: False for a gradient by reverse mode, which may take the faster fused
                kernels where the model is not in float64.

        Yields:
            Nothing.
        """
        with ExitStack() as stack:
            _set_switches(self.allow_tf32, self.matmul_precision, stack)
            if forward_mode or self.runtime_dtype == "float64":
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self.runtime_dtype == "float64":
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)  # of what model code creates without a type
                stack.enter_context(_KeepFloat64())
            yield

    def mixed(self, device: torch.device) -> torch.autocast:
        """A block that takes a forward pass under `autocast`, if there is one.

        The backward pass is left outside, as in training.

        Args:
            device: Where the pass runs.

        Returns:
            The block.
        """
        autocast = AUTOCAST.get(self.autocast or "")
        return torch.autocast(device.type, autocast, enabled=autocast is not None)


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


def _set_switches(allow_tf32: bool, matmul_precision: str, stack: ExitStack) -> None:
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
    now = [switch.fp32_precision for switch in (*_CUDA, *_ONEDNN)]
    if now != [cuda] * len(_CUDA) + [onednn] * len(_ONEDNN):
        raise RuntimeError(f"Switches of fp32_precision do not stay where they were set: {now}.")


class _KeepFloat64(TorchFunctionMode):
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
