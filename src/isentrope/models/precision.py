"""Numerical precision as one explicit object (T13).

Three policies: "float64" (no operation of the model may round to a shorter type), "float32"
(float32 model, float64 log-softmax and entropies, TF32 off) and "bfloat16" (speed only;
never for ΔH); and "as_is", which keeps the types of a model in training.

A configuration holds a precision before torch is imported, so its methods import torch.
"""

# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

AUTOCAST_FIELDS = {"bf16": "bfloat16", "fp16": "float16"}
"""Fields of a trainer's arguments that ask for autocast, and its type."""
AS_IS = "as_is"

_DTYPES = ("float64", "float32", "bfloat16")
_CHOICES = {
    "runtime_dtype": (*_DTYPES, AS_IS),
    "entropy_dtype": _DTYPES,
    "matmul_precision": ("highest", "high", "medium"),
    "autocast": (*AUTOCAST_FIELDS.values(), None),
}


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
        from isentrope.models.float_types import DTYPES

        return DTYPES.get(self.runtime_dtype)

    @property
    def rounding(self) -> str | None:
        """Type of 16 bits that the products of a gradient are rounded to; None for none."""
        return self.autocast or ("bfloat16" if self.runtime_dtype == "bfloat16" else None)

    @property
    def entropy(self) -> torch.dtype:
        """The torch dtype of log-softmax and entropies."""
        from isentrope.models.float_types import DTYPES

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
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from isentrope.models.float_switches import KeepFloat64, set_switches

        with ExitStack() as stack:
            set_switches(self.allow_tf32, self.matmul_precision, stack)
            if forward_mode or self.runtime_dtype == "float64":
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self.runtime_dtype == "float64":
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)  # of what model code creates without a type
                stack.enter_context(KeepFloat64())
            yield

    def mixed(self, device: torch.device) -> torch.autocast:
        """A block that takes a forward pass under `autocast`, if there is one.

        The backward pass is left outside, as in training.

        Args:
            device: Where the pass runs.

        Returns:
            The block.
        """
        import torch

        from isentrope.models.float_types import AUTOCAST

        autocast = AUTOCAST.get(self.autocast or "")
        return torch.autocast(device.type, autocast, enabled=autocast is not None)
