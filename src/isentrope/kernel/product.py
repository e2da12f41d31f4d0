"""K x without K: one weighted backward pass over U, then one pass over E (T7).

(K x)_i = <∂S(t_i), P Σ_j x_j ∂S(t_j)>,     (K x)_ik = ∂_u s_ik,     u = P Σ_j x_j ∂S(t_j)
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.kernel.sequence_gradients import Passes, SequenceGradients
from isentrope.kernel.weighted import score_sums
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score_along
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector, multiply


def kernel_product(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    x: Tensor,
    *,
    preconditioner: Vector | None = None,
    passes: Passes = "hooks",
) -> Tensor:
    """K x for every sequence of E; with x = wA, how a step on U moves log π(t) per unit η.

    Args:
        policy: The policy.
        E: The rows.
        U: The columns.
        x: (n_U,) float64.
        preconditioner: P, diagonal; None for 1.
        passes: How E's gradients are contracted.

    Returns:
        (n_E,) float64.
    """
    u = _combined(policy, U, x, preconditioner)
    out = torch.zeros(len(E), dtype=torch.float64, device=policy.device)

    def project(name: str, rows: Tensor, gradients: Tensor) -> None:
        along = u[name].flatten().to(gradients)
        out.index_add_(0, rows, (gradients.flatten(1) @ along).double())

    SequenceGradients(policy, passes).visit(score_sums(E), project)
    return out.cpu()


def token_kernel_product(
    policy: Policy, E: Rollouts, U: Rollouts, x: Tensor, *, preconditioner: Vector | None = None
) -> Tensor:
    """K x token by token, by forward mode over E.

    Args:
        policy: The policy.
        E: The rows.
        U: The columns.
        x: (n_U,) float64.
        preconditioner: P, diagonal; None for 1.

    Returns:
        (n_E, t) float64, 0 where there is no token; rows sum to `kernel_product`.
    """
    _, slope = score_along(policy, E, _combined(policy, U, x, preconditioner), 1)
    return slope.logprobs


def _combined(policy: Policy, U: Rollouts, x: Tensor, preconditioner: Vector | None) -> Vector:
    if x.shape != (len(U),):
        raise ValueError(f"x has shape {tuple(x.shape)} for {len(U)} sequences of U.")
    gradient = policy.weighted_gradient(U, x[:, None] * score_sums(U).logprob_weights)
    return gradient if preconditioner is None else multiply(preconditioner, gradient)
