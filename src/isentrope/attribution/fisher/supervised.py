"""The Fisher kernel and the noise scale of a supervised loss (T7), (T8).

    L = −E_t[S(t)]  (demonstrations t),     v = −∂L_U = (1/B) Σ_i ∂S(t_i)  (SGD on B examples of U)
    L(θ + ηv) − L(θ) = η δL₁ + η² δL₂ + O(η³)
    δL₁ = −(1/B) Σ_i E_t[K₁(t, t_i)]
    δL₂ = (1/2B²) Σ_ij E_t[K₁(t, t_i) K₁(t, t_j)] − ½ E_t[∂_v²π/π],     ∂_v²π/π = ∂_v²S + (∂_vS)²

At first order the mean kernel lowers the loss. At second order K₁² raises it; the other term is the
curvature of π itself, zero on average over the model's own responses. For a batch of B
fresh examples (McCandlish et al. 2018, arXiv 1812.06162), with G = ∂L, Σ the covariance of one
example's gradient, and the Hessian H of L taken as its K₁² part E_t[∂S ∂Sᵀ],

    E[δL₁] = −|G|²,     E[δL₂] = ½ (Gᵀ H G + tr(H Σ)/B),     B_noise = tr(H Σ)/Gᵀ H G
    <g_i, g_j> = K₁(t_i, t_j),     <g_i, H g_j> = E_t[K₁(t, t_i) K₁(t, t_j)]

so that B_simple and B_noise are (T8) of these two Gram matrices, with examples as units.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.attribution.noise.scale import NoiseScale, noise_scale_of_gram
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score_along

UNIT = "nats per example"


@dataclass(frozen=True)
class LossChange:
    """What an SGD step on U does to the loss on E.

    Attributes:
        loss: L at θ.
        first_order: δL₁ per unit η.
        second_order: δL₂ per unit η², the sum of the next two.
        squared_kernel: Its K₁² term.
        curvature: Its curvature term −½ E[∂_v²π/π].
        kernel: (n_E, n_U) K₁.
    """

    loss: Estimate
    first_order: Estimate
    second_order: Estimate
    squared_kernel: Estimate
    curvature: Estimate
    kernel: Tensor = field(repr=False)


def supervised_loss_change(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    *,
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
) -> LossChange:
    """The change of a supervised loss by an SGD step, predicted from K₁.

    Args:
        policy: The policy.
        E: Demonstrations on which the loss is measured; its prompt draws are the units of errors.
        U: The B demonstrations of the step.
        confidence: Nominal coverage.
        gradients: How gradients are computed, and those of the smaller side held.

    Returns:
        The change.
    """
    kernel = gram(policy, score_sums(E), score_sums(U).as_trained(), gradients=gradients)
    v = weighted_gradient(policy, U, score_sums(U).logprob_weights / len(U))  # −∂L_U
    s, _, second = (x.logprobs.sum(1) for x in score_along(policy, E, v, 2))
    slope = kernel.mean(1)  # ∂_vS of each sequence of E
    squared, curved = slope.square() / 2, -(second + slope.square()) / 2
    columns = torch.stack([-s, -slope, squared + curved, squared, curved])  # (5, n_E)
    jackknife = infinitesimal_jackknife(lambda omega: columns @ omega / omega.sum(), E.prompt_index)
    units = (UNIT, f"{UNIT} per η", *[f"{UNIT} per η²"] * 3)
    method = "mean over demonstrations"
    estimates = (
        jackknife.estimate(k, unit=unit, method=method, confidence=confidence)
        for k, unit in enumerate(units)
    )
    return LossChange(*estimates, kernel=kernel)


def supervised_noise_scale(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    *,
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
) -> tuple[NoiseScale, NoiseScale]:
    """B_simple and B_noise of a supervised loss, in examples, both from K₁.

    Args:
        policy: The policy.
        E: Demonstrations that give H, drawn independently of U from the same population.
        U: Independent demonstrations, the units: one per prompt draw.
        confidence: Nominal coverage.
        gradients: How gradients are computed and held.

    Returns:
        |G|², tr Σ and B_simple, from K₁ of U with itself; and Gᵀ H G, tr(H Σ) and B_noise, H the
        K₁² part of the Hessian on E, held fixed.

    Raises:
        ValueError: If two examples of U are of one prompt draw, or there are fewer than four.
    """
    if U.n_prompts < len(U):
        raise ValueError(
            f"The {len(U)} examples of U are of {U.n_prompts} prompt draws, so they are not "
            "independent: give one demonstration per prompt draw."
        )
    trained = score_sums(U).as_trained()
    own = gram(policy, trained, gradients=gradients)
    cross = gram(policy, score_sums(E), trained, gradients=gradients)

    def scale(matrix: Tensor, unit: str) -> NoiseScale:
        return noise_scale_of_gram(
            matrix, confidence=confidence, unit="examples", square_unit=f"{UNIT} per {unit}"
        )

    return scale(own, "η"), scale(cross.T @ cross / len(E), "η²")
