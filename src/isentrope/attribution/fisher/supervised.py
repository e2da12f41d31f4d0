"""The Fisher kernel and the noise scale of a supervised loss (T7), (T8).

    L = −E_t[S(t)]  (demonstrations t),     v = −∂L_U = (1/B) Σ_i ∂S(t_i)  (SGD on B examples of U)
    ΔL(η) = L(θ + ηv) − L(θ) = η δL₁ + η² δL₂ + O(η³)
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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.options import GradientOptions
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.attribution.noise.scale import METHOD, NoiseScale, noise_scale_of_gram
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score, score_along

UNIT = "nats per example"


@dataclass(frozen=True)
class LossPoint:
    """ΔL at one learning rate.

    Attributes:
        eta: η.
        change: ΔL(η), measured by scoring at θ + ηv.
        residual: ΔL(η) − ηδL₁ − η²δL₂ with its own (paired) error.
    """

    eta: float
    change: Estimate
    residual: Estimate


@dataclass(frozen=True)
class LossChange:
    """What an SGD step on U does to the loss on E.

    Attributes:
        loss: L at θ.
        first_order: δL₁ per unit η.
        second_order: δL₂ per unit η², the sum of the next two.
        squared_kernel: Its K₁² term.
        curvature: Its curvature term −½ E[∂_v²π/π].
        points: One per learning rate.
        per_example: (n_U,) part of each example of U in δL₁, −E_t[K₁(t, t_i)]/B.
        kernel: (n_E, n_U) K₁.
    """

    loss: Estimate
    first_order: Estimate
    second_order: Estimate
    squared_kernel: Estimate
    curvature: Estimate
    points: list[LossPoint]
    per_example: Tensor
    kernel: Tensor = field(repr=False)


def supervised_loss_change(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    etas: Sequence[float] = (),
    *,
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
) -> LossChange:
    """The change of a supervised loss by an SGD step, measured and predicted from K₁.

    Args:
        policy: The policy.
        E: Demonstrations on which the loss is measured; its prompt draws are the units of errors.
        U: The B demonstrations of the step.
        etas: Learning rates at which to measure ΔL; may be empty.
        confidence: Nominal coverage.
        gradients: How gradients are computed, and those of the smaller side held.

    Returns:
        The change.

    Raises:
        ValueError: If a learning rate is not finite.
    """
    if not all(math.isfinite(eta) for eta in etas):
        raise ValueError(f"Learning rates must be finite numbers, got {list(etas)}.")
    kernel = gram(policy, score_sums(E), score_sums(U).as_trained(), gradients=gradients)
    v = _sgd_direction(policy, U)
    s, _, second = (x.logprobs.sum(1) for x in score_along(policy, E, v, 2))
    slope = kernel.mean(1)  # ∂_vS of each sequence of E
    squared, curved = slope.square() / 2, -(second + slope.square()) / 2
    columns = [-s, -slope, squared + curved, squared, curved]
    for eta in etas:
        moved = score(policy, E, policy.parameters_along(v, eta)).logprobs.sum(1)
        columns += [s - moved, s - moved - eta * (columns[1] + eta * columns[2])]
    estimate = _means(torch.stack(columns), E.prompt_index, confidence)
    return LossChange(
        loss=estimate(0, UNIT),
        first_order=estimate(1, f"{UNIT} per η"),
        second_order=estimate(2, f"{UNIT} per η²"),
        squared_kernel=estimate(3, f"{UNIT} per η²"),
        curvature=estimate(4, f"{UNIT} per η²"),
        points=[
            LossPoint(eta, estimate(5 + 2 * k, UNIT), estimate(6 + 2 * k, UNIT))
            for k, eta in enumerate(etas)
        ],
        per_example=-kernel.mean(0) / len(U),
        kernel=kernel,
    )


@dataclass(frozen=True)
class SupervisedNoise:
    """How many examples a supervised step needs.

    Attributes:
        simple: |G|², tr Σ and B_simple, from K₁ of U with itself.
        curved: Gᵀ H G, tr(H Σ) and B_noise, H the K₁² part of the Hessian on E, held fixed.
    """

    simple: NoiseScale
    curved: NoiseScale

    @property
    def first_order(self) -> Estimate:
        """E[δL₁] = −|G|² of a step on fresh examples, per unit η, for any number of them."""
        square = self.simple.gradient_square
        return Estimate(
            -square.value,
            square.se,
            -square.ci_high,
            -square.ci_low,
            square.n,
            f"{UNIT} per η",
            square.method,
            degrees_of_freedom=square.degrees_of_freedom,
        )

    def second_order(self, batch: float, confidence: float = 0.95) -> Estimate:
        """E[δL₂] of a step on `batch` fresh examples, its K₁² term, per unit η².

        Args:
            batch: B.
            confidence: Nominal coverage.

        Returns:
            ½ (Gᵀ H G + tr(H Σ)/B).

        Raises:
            ValueError: If B is not positive.
        """
        if not batch > 0:
            raise ValueError(f"A batch has a positive number of examples, got {batch}.")
        share = torch.tensor([0.5, 0.5 / batch], dtype=torch.float64)
        signal, noise = self.curved.gradient_square, self.curved.trace
        both = Estimate.from_standard_error(
            (signal.value + noise.value / batch) / 2,
            float((share @ self.curved.covariance @ share).clamp_min(0).sqrt()),
            signal.n,
            unit=f"{UNIT} per η²",
            method=METHOD,
            confidence=confidence,
            warnings=noise.warnings,
            trusted=math.isfinite(noise.ci_low),
            degrees_of_freedom=noise.degrees_of_freedom,
        )
        return replace(both, ci_high=math.inf) if noise.ci_high == math.inf else both


def supervised_noise_scale(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    *,
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
) -> SupervisedNoise:
    """B_simple and B_noise of a supervised loss, in examples, both from K₁.

    Args:
        policy: The policy.
        E: Demonstrations that give H, drawn independently of U from the same population.
        U: Independent demonstrations, the units: one per prompt draw.
        confidence: Nominal coverage.
        gradients: How gradients are computed and held.

    Returns:
        The noise scales.

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
    interval = {"confidence": confidence, "unit": "examples"}
    simple = noise_scale_of_gram(own, square_unit=f"{UNIT} per η", **interval)
    curved = noise_scale_of_gram(cross.T @ cross / len(E), square_unit=f"{UNIT} per η²", **interval)
    return SupervisedNoise(simple, curved)


def _sgd_direction(policy: Policy, U: Rollouts) -> Vector:
    return weighted_gradient(policy, U, score_sums(U).logprob_weights / len(U))


def _means(
    columns: Tensor, prompt_index: Tensor, confidence: float
) -> Callable[[int, str], Estimate]:
    """Mean of each row of (m, n), with errors over prompts."""
    jackknife = infinitesimal_jackknife(lambda omega: columns @ omega / omega.sum(), prompt_index)

    def estimate(k: int, unit: str) -> Estimate:
        return jackknife.estimate(
            k, unit=unit, method="mean over demonstrations", confidence=confidence
        )

    return estimate
