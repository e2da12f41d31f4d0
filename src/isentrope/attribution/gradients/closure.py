"""Two ways to one derivative, which must agree to rounding.

Where they do not, the gradient that autograd returns is not the derivative of the model's output (a
custom backward pass, a detached tensor), and no number from it is reported.
"""

from isentrope.models.architecture import name_of
from isentrope.models.float_types import rounding_bounds
from isentrope.policy.language_model import Policy


def tolerance(policy: Policy) -> float:
    """Largest relative gap between two ways to a derivative that rounding explains.

    Args:
        policy: The policy.

    Returns:
        That of the shortest type of a parameter, frozen or not (`RoundingBounds`).
    """
    types = {p.dtype for p in policy.model.parameters() if p.is_floating_point()}
    return rounding_bounds(types).derivative


def require_agreement(
    policy: Policy, ways: str, value: float, expected: float, scale: float
) -> float:
    """Refuse two ways to one derivative that differ by more than rounding.

    Args:
        policy: The policy.
        ways: The two, in words.
        value: By one way.
        expected: By the other.
        scale: Size of the terms that were added.

    Returns:
        The largest difference that rounding explains.

    Raises:
        ValueError: If they differ.
    """
    gap = abs(value - expected)
    explained = tolerance(policy) * max(scale, abs(expected))
    if not gap <= explained:
        raise ValueError(
            f"{ways} differ: {value:.6g} against {expected:.6g}, {gap / (scale or 1.0):.1e} of the "
            f"terms' size where rounding explains {tolerance(policy):.0e}. A derivative of "
            f"{name_of(policy.causal_lm)} is not that of its output (a custom backward pass, a "
            "detached tensor, a kernel), so no number from it is reported: load the model "
            "with attn_implementation='eager' and without custom kernels."
        )
    return explained
