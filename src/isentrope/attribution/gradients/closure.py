"""Two ways to one derivative, which must agree to rounding.

Where they do not, the gradient that autograd returns is not the derivative of the model's output (a
custom backward pass, a detached tensor), and no number from it is reported.
"""

import torch

from isentrope.models.architecture import name_of
from isentrope.policy.language_model import Policy

CLOSURE = 1e-6
"""Largest relative gap in float64, far above its rounding and far below any standard error."""

ROUNDING_STEPS = 3e3
"""In shorter types: the gap allowed in units of the type's roundoff, as for hooks and autograd."""


def tolerance(policy: Policy) -> float:
    """Largest relative gap between two ways to a derivative that rounding explains.

    Args:
        policy: The policy.

    Returns:
        1e-6 in float64, 4e-4 in float32, 0.1 where a parameter, frozen or not, is in bfloat16.
    """
    types = {p.dtype for p in policy.model.parameters() if p.is_floating_point()}
    epsilon = max(torch.finfo(dtype).eps for dtype in types)
    return max(CLOSURE, min(ROUNDING_STEPS * epsilon, 0.1))


def require_agreement(
    policy: Policy, what: str, value: float, expected: float, scale: float
) -> None:
    """Refuse two ways to one derivative that differ by more than rounding.

    Args:
        policy: The policy.
        what: The two ways, in words.
        value: By one way.
        expected: By the other.
        scale: Size of the terms that were added.

    Raises:
        ValueError: If they differ.
    """
    gap = abs(value - expected)
    if not gap <= tolerance(policy) * max(scale, abs(expected)):
        raise ValueError(
            f"{what} differ: {value:.6g} against {expected:.6g}, {gap / (scale or 1.0):.1e} of the "
            f"terms' size where rounding explains {tolerance(policy):.0e}. A derivative of "
            f"{name_of(policy.causal_lm)} is not that of its output (a custom backward pass, a "
            "detached tensor, a kernel), so no number from it is reported: load the model "
            "with attn_implementation='eager' and without custom kernels."
        )
