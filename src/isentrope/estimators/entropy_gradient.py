"""The entropy gradient g_H = ∂_θ F by one backward pass over E (T4a).

The cotangents ∂F/∂r_ik and ∂F/∂H_ik of the same F that measures ΔH are taken on the arrays; then
one backward pass over the model contracts them with ∂s_ik and ∂H_ik. So <g_H, v> equals δH₁ of
the same samples to rounding, for every method and functional.
"""

from __future__ import annotations

import torch

from isentrope.estimators.functional import Functional, Functionals, Method
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.models.padding import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy


def entropy_gradient(
    policy: Policy,
    rollouts: Rollouts,
    *,
    functional: Functional = "per_token",
    method: Method = "prefix",
) -> Vector:
    """Gradient of ℋ or h by the trainable parameters.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        functional: "per_token" (h) or "per_sequence" (ℋ).
        method: The estimator whose derivative this is.

    Returns:
        g_H by parameter name, float64, nats (per token or sequence) per unit of θ.
    """
    sample = score_batch(policy, rollouts, functional=functional, method=method)
    by_logprob, by_entropy = cotangents(sample)
    with derivative_of_scores(policy.model):
        return weighted_gradient(policy, rollouts, by_logprob, by_entropy)


def cotangents(sample: ScoredBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """∂F/∂s and ∂F/∂H at θ.

    Args:
        sample: Scores at θ and the functional.

    Returns:
        Two (n, t) arrays.
    """
    return cotangents_of_arrays(sample.functional, sample.log_ratios, sample.entropies)


def cotangents_of_arrays(
    functional: Functionals, log_ratios: torch.Tensor, entropies: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """∂F/∂r and ∂F/∂H at equal weights.

    Args:
        functional: F.
        log_ratios: (n, t) r, nats.
        entropies: (n, t) H, nats.

    Returns:
        Two (n, t) arrays.
    """
    omega = torch.full((len(entropies),), 1.0, dtype=torch.float64)

    def at_equal_weights(r: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return functional(omega, r, h)

    return torch.func.grad(at_equal_weights, argnums=(0, 1))(log_ratios, entropies)
