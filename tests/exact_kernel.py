"""The Fisher kernel of every response of a policy, by differences alone (T7), (T12)."""

import torch

from isentrope.nouns.vectors import require_same_names
from isentrope.oracle.plain import Tree, gradients


def exact_kernel(exact, preconditioner=None, rows=None, columns=None):
    """K(t, t') = Σ_α P_α ∂_αS(t) ∂_αS(t'): rows are all responses by default, columns the rows.

    Four evaluations per parameter; the n × d score vectors are held while it is computed.
    """
    theta = exact.policy.theta

    def score_vectors(indices):
        chosen = exact.rollouts if indices is None else exact.rollouts.select(indices)
        tree = Tree(exact.policy, chosen)
        return gradients(lambda params: tree(params)[0], theta)

    left = score_vectors(rows)
    right = left if columns is None else score_vectors(columns)
    if preconditioner is None:
        return left @ right.T
    require_same_names(theta, preconditioner)
    diagonal = torch.cat([preconditioner[n].flatten().to(left) for n in theta])
    return left @ (diagonal[:, None] * right.T)
