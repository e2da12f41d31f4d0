"""The Fisher kernel of every response with every other, by one reverse pass a response (T12).

    K₁(t, t') = Σ_α P_α ∂_αS(t) ∂_αS(t') = (W P Wᵀ)_tt',     W = ∂S, (n, d) float64

W is held whole and each row of it comes from a backward pass of its own: no hooks, no batches, no
tiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.policy.batching import micro_batches
from isentrope.policy.language_model import Policy
from isentrope.policy.padding import derivative_of_scores
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector, require_same_names


def exact_kernel(
    policy: Policy, left: Rollouts, right: Rollouts, preconditioner: Vector | None = None
) -> Tensor:
    """K₁ between two sets of sequences.

    Args:
        policy: A float64 policy.
        left: The rows.
        right: The columns; the same object as `left` saves its passes.
        preconditioner: P, diagonal, by parameter name; None for 1.

    Returns:
        (n_left, n_right) float64.
    """
    rows = _score_vectors(policy, left)
    columns = rows if right is left else _score_vectors(policy, right)
    if preconditioner is None:
        return rows @ columns.T
    require_same_names(policy.theta, preconditioner)
    diagonal = torch.cat([preconditioner[n].flatten().to(rows) for n in policy.theta])
    return rows @ (diagonal[:, None] * columns.T)


def _score_vectors(policy: Policy, rollouts: Rollouts) -> Tensor:
    """W, (n, d): ∂S of each sequence, parameters one after the other."""
    theta = {n: p.requires_grad_() for n, p in policy.theta.items()}
    leaves = list(theta.values())
    rows = []
    for i in range(len(rollouts)):
        (batch,) = micro_batches(rollouts.select([i]), policy.max_tokens)
        with torch.enable_grad(), derivative_of_scores(policy.model):
            s, _ = policy.packed_scores(batch.to(policy.device), theta)
            grads = torch.autograd.grad(s.sum(), leaves, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in grads]).cpu())
    return torch.stack(rows)
