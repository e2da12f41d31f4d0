"""Count-sketches of per-sequence gradients: W R with one signed bucket per parameter (T7).

    R_αb = ±1 for one bucket b = hash(α), else 0,     E[(W R)(W' R)ᵀ] = W W'ᵀ

The error of an inner product is about |w||w'|/√k for any value of the product, so gradients that
are nearly orthogonal are sketched poorly: the relative error of the kernel is about
1/(cos_rms √k). It is measured, against the exact kernel, and returned.
"""

import torch
from torch import Tensor

from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientBackend
from isentrope.attribution.gradients.token_sum import TokenSum, score_sums
from isentrope.estimators.functional import infinitesimal_jackknife
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, local_part, require_same_names, sharded_like
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring_batches import smaller_where_memory_is_short


@smaller_where_memory_is_short
def sketched_kernel(
    policy: Policy,
    E: Rollouts,
    U: Rollouts | None,
    dimension: int,
    exact: Tensor,
    *,
    preconditioner: Vector | None = None,
    seed: int = 0,
    backend: GradientBackend = "hooks",
) -> tuple[Tensor, Estimate]:
    """Approximate a block of the Fisher kernel, and measure how well.

    Args:
        policy: The policy.
        E: The rows.
        U: The columns; None: E with itself.
        dimension: k, numbers per hashed gradient.
        exact: (n_E, n_U) the exact block.
        preconditioner: P, diagonal; None for 1.
        seed: Seed of the hash.
        backend: How gradients are computed.

    Returns:
        (n_E, n_U) float64, and its error ‖K̂ − K‖/‖K‖ (Frobenius).
    """
    gradients = SequenceGradients(policy, backend)
    of_columns = score_sums(E) if U is None else score_sums(U).as_trained()
    left = _sketch(gradients, score_sums(E), None, dimension, seed)
    right = _sketch(gradients, of_columns, preconditioner, dimension, seed)
    matrix = left @ right.T
    errors, size = (matrix - exact).square().sum(1), exact.square().sum(1)
    jackknife = infinitesimal_jackknife(
        lambda omega: ((omega @ errors) / (omega @ size)).sqrt()[None], torch.arange(len(errors))
    )
    return matrix, jackknife.estimate(
        0, unit="relative Frobenius error", method="count-sketch against exact rows"
    )


def _sketch(
    gradients: SequenceGradients,
    token_sum: TokenSum,
    preconditioner: Vector | None,
    dimension: int,
    seed: int,
) -> Tensor:
    policy = gradients.policy
    if preconditioner is not None:
        require_same_names(policy.theta, preconditioner)
    out = torch.zeros(token_sum.n_rows, dimension, dtype=torch.float64, device=policy.device)
    theta = policy.theta
    seeds = {name: seed * len(policy.names) + k for k, name in enumerate(policy.names)}

    def add(name: str, rows: Tensor, new: Tensor) -> None:
        new = new.flatten(1)
        generator = torch.Generator().manual_seed(seeds[name])
        like, size = theta[name], (theta[name].numel(),)
        hashes = torch.randint(dimension, size, generator=generator)
        signs = 2.0 * torch.randint(2, size, generator=generator) - 1
        bucket, sign = (local_part(sharded_like(x.view(like.shape), like)) for x in (hashes, signs))
        if preconditioner is not None:
            sign = sign * local_part(preconditioner[name]).to(sign.device)
        hashed = new.new_zeros(len(new), dimension).index_add_(
            1, bucket.flatten(), new * sign.flatten().to(new)
        )
        out.index_add_(0, rows, hashed.double())

    gradients.visit(token_sum, add)
    policy.ranks.sum([out])
    return out.cpu()
