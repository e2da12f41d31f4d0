"""Types of numbers, and what rounding in each of them explains."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable
from dataclasses import dataclass

import torch

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


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
