"""The second-order entropy change of an SGD step, pair by pair of its sequences (T7).

With d_j the derivative along ∂S(t_j), so that d_jS(t) = K₁(t, t_j) with P = 1,

    δH₂ = ½ xᵀ K₂ x per unit η²,     v = Σ_j x_j ∂S(t_j),     x = wA
    K₂(j, j') = −E_t[ d_jS d_j'S + (S − S̄)(d_j d_j'S + d_jS d_j'S) ]

for ℋ in its surprisal form. The products of first derivatives are a Gram matrix of the E × U
kernel, K₁ᵀ diag(ω (1 + S − S̄)) K₁; the second derivatives are gᵢᵀ 𝓗 gⱼ with the Hessian 𝓗 of
Σ_t ω_t (S − S̄) S_t, S − S̄ held fixed: a double backward pass over E for each sequence of U. All
gradients of U are held.

It is the pairwise form of what nested forward mode gives for one v (`second_order_change`). That
has the error over E's prompts and, for one v, is cheaper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientOptions, Storage
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.models.batching import micro_batches
from isentrope.models.embeddings import derivative_of_scores
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivatives import require_derivatives
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score, score_along
from isentrope.policy.scoring_batches import smaller_where_memory_is_short


@smaller_where_memory_is_short
def second_order_kernel(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    *,
    omega: Tensor | None = None,
    gradients: GradientOptions = GradientOptions(),
) -> Tensor:
    """K₂ of the sequences of U, for plain SGD.

    Args:
        policy: The policy.
        E: Unfiltered evaluation batch, drawn independently of U.
        U: Sequences whose gradients form the step.
        omega: (n_E,) weights of E's sequences, of any positive sum; None: equal.
        gradients: How gradients are computed, and held for the first derivatives.

    Returns:
        (n_U, n_U) float64, symmetric to rounding: ½ xᵀ K₂ x is δH₂ in nats per sequence per η².

    Raises:
        ValueError: If the base is spread over processes.
        DerivativeError: If the model's second derivatives are wrong.
    """
    if policy.sharded:
        raise ValueError(
            "fisher_kernel.second_order differentiates a backward pass, and layers that are spread "
            "are there for one backward pass only: set it or checkpoint.shard_base to false."
        )
    require_derivatives(policy, E, "backward over backward")
    weights = torch.ones(len(E), dtype=torch.float64) if omega is None else omega
    weights = weights / weights.sum()
    surprise = score(policy, E).logprobs.sum(1)
    centred = surprise - weights @ surprise
    first = gram(policy, score_sums(E), score_sums(U).as_trained(), gradients=gradients)
    products = first.T @ ((weights * (1 + centred))[:, None] * first)
    held = GradientStore(policy.theta, len(U), Storage())
    SequenceGradients(policy, gradients.backend).visit(score_sums(U).as_trained(), held.add)
    held.share(policy.ranks)
    rows = {name: held.block(name) for name in policy.names}
    return -(products + _hessian_products(policy, E, weights * centred, rows))


def second_order_change(
    policy: Policy, E: Rollouts, direction: Vector, *, confidence: float = 0.95
) -> Estimate:
    """δH₂ of ℋ along v in its surprisal form, by nested forward mode, with its error over prompts.

    Args:
        policy: The policy.
        E: Unfiltered evaluation batch.
        direction: v per unit η.
        confidence: Nominal coverage.

    Returns:
        −½ E[(∂_vS)² + (S − S̄)(∂²_vS + (∂_vS)²)], nats per sequence per η².
    """
    s, first, second = (x.logprobs.sum(1) for x in score_along(policy, E, direction, 2))

    def statistic(omega: Tensor) -> Tensor:
        weights = omega / omega.sum()
        centred = s - weights @ s
        curved = first.square() + centred * (second + first.square())
        return -(weights @ curved)[None] / 2

    jackknife = infinitesimal_jackknife(statistic, E.prompt_index)
    return jackknife.estimate(
        0,
        unit="nats per sequence per η²",
        method="surprisal",
        confidence=confidence,
    )


def _hessian_products(
    policy: Policy, E: Rollouts, coefficients: Tensor, gradients: Vector
) -> Tensor:
    """(n_U, n_U) ∂S(t_i)ᵀ 𝓗 ∂S(t_j), 𝓗 the Hessian of Σ_t coefficients_t S_t."""
    n = len(next(iter(gradients.values())))
    theta = {n: p.requires_grad_() for n, p in policy.theta.items()}
    leaves = list(theta.values())
    out = torch.zeros(n, n, dtype=torch.float64, device=policy.device)
    for batch in micro_batches(E, policy.max_tokens, policy.ranks, padding=policy.padding):
        here = batch.to(policy.device)
        scores = derivative_of_scores(policy.model)
        with torch.enable_grad(), policy.precision.active(), scores:
            s, _ = policy.packed_scores(here, theta)
            weights = coefficients[batch.sequences][batch.rows].to(s)
            slope = torch.autograd.grad(
                weights @ s, leaves, create_graph=True, materialize_grads=True
            )
            for j in range(n):
                vector = [gradients[n][j].view_as(p) for n, p in theta.items()]
                curved = torch.autograd.grad(
                    slope, leaves, vector, retain_graph=True, materialize_grads=True
                )
                if batch.counted:
                    for name, x in zip(theta, curved, strict=True):
                        out[:, j] += (gradients[name] @ x.flatten()).double()
    policy.ranks.sum([out])
    return out.cpu()
