"""Changes of second order by the kernel: of entropy, and of a supervised loss (T7), (T8).

The second-order entropy change of an SGD step comes pair by pair of its sequences. With d_j the
derivative along ∂S(t_j), so that d_jS(t) = K₁(t, t_j) with P = 1,

    δH₂ = ½ xᵀ K₂ x per unit η²,     v = Σ_j x_j ∂S(t_j),     x = wA
    K₂(j, j') = −E_t[ d_jS d_j'S + (S − S̄)(d_j d_j'S + d_jS d_j'S) ]

for ℋ in its surprisal form. The products of first derivatives are a Gram matrix of the E × U
kernel, K₁ᵀ diag(ω (1 + S − S̄)) K₁; the second derivatives are gᵢᵀ 𝓗 gⱼ with the Hessian 𝓗 of
Σ_t ω_t (S − S̄) S_t, S − S̄ held fixed: a double backward pass over E for each sequence of U. All
gradients of U are held.

It is the pairwise form of what nested forward mode gives for one v (`second_order_change`). That
has the error over E's prompts and, for one v, is cheaper.

Of a supervised loss the kernel gives both orders and the noise scale:

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

from collections.abc import Callable

import torch
from torch import Tensor

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.sequence_gradients import SequenceGradients
from isentrope.attribution.gradients.storage_plan import GradientOptions, Storage
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.attribution.noise.scale import NoiseScale, noise_scale_of_gram
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.models.architecture import derivative_of_scores
from isentrope.models.batching import MicroBatch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.passes import map_micro_batches
from isentrope.policy.scoring import score, score_along
from isentrope.policy.short_memory import smaller_where_memory_is_short

LOSS_UNIT = "nats per example"


def supervised_loss_change(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    *,
    confidence: float = 0.95,
    gradients: GradientOptions = GradientOptions(),
) -> dict[str, Estimate]:
    """The change of a supervised loss by an SGD step on U, predicted from K₁.

    Args:
        policy: The policy.
        E: Demonstrations on which the loss is measured; its prompt draws are the units of errors.
        U: The B demonstrations of the step.
        confidence: Nominal coverage.
        gradients: How gradients are computed, and those of the smaller side held.

    Returns:
        "loss", L at θ; "first_order", δL₁ per unit η; "second_order", δL₂ per unit η², the sum of
        "squared_kernel", its K₁² term, and "curvature", its term −½ E[∂_v²π/π].
    """
    kernel = gram(policy, score_sums(E), score_sums(U).as_trained(), gradients=gradients)
    v = weighted_gradient(policy, U, score_sums(U).logprob_weights / len(U))  # −∂L_U
    s, _, second = (x.logprobs.sum(1) for x in score_along(policy, E, v, 2))
    slope = kernel.mean(1)  # (n_E,) ∂_vS of each sequence of E
    squared = slope.square() / 2
    curved = -(second + slope.square()) / 2
    first = f"{LOSS_UNIT} per η"
    second_unit = f"{LOSS_UNIT} per η²"
    numbers = {  # (n_E,) each
        "loss": (-s, LOSS_UNIT),
        "first_order": (-slope, first),
        "second_order": (squared + curved, second_unit),
        "squared_kernel": (squared, second_unit),
        "curvature": (curved, second_unit),
    }
    columns = torch.stack([x for x, _ in numbers.values()])
    jackknife = infinitesimal_jackknife(lambda omega: columns @ omega / omega.sum(), E.prompt_index)
    options = {"method": "mean over demonstrations", "confidence": confidence}
    return {
        name: jackknife.estimate(k, unit=unit, **options)
        for k, (name, (_, unit)) in enumerate(numbers.items())
    }


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
    within = gram(policy, trained, gradients=gradients)
    cross = gram(policy, score_sums(E), trained, gradients=gradients)

    def scale(matrix: Tensor, unit: str) -> NoiseScale:
        return noise_scale_of_gram(
            matrix, confidence=confidence, unit="examples", square_unit=f"{LOSS_UNIT} per {unit}"
        )

    return scale(within, "η"), scale(cross.T @ cross / len(E), "η²")


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
    store = GradientStore(policy.theta, len(U), Storage())
    SequenceGradients(policy, gradients.backend).visit(score_sums(U).as_trained(), store.add)
    policy.complete_rows(store.tensors)
    rows = {name: store.block(name) for name in policy.names}
    # of Σ_t coefficients_t S_t, whose Hessian is 𝓗
    coefficients = (weights * centred).to(policy.device)
    theta = {n: p.requires_grad_() for n, p in policy.theta.items()}
    leaves = list(theta.values())
    out = torch.zeros(len(U), len(U), dtype=torch.float64, device=policy.device)

    def multiply(batch: MicroBatch, receive: Callable[[int, Tensor], object]) -> None:
        """Pass on 𝓗 gⱼ times all rows, parameter by parameter, of every sequence j of U."""
        scores = derivative_of_scores(policy.model)
        with torch.enable_grad(), policy.precision.active(), scores:
            s, _ = policy.packed_scores(batch, theta)
            of_tokens = coefficients[batch.sequences][batch.rows].to(s)
            slope = torch.autograd.grad(
                of_tokens @ s, leaves, create_graph=True, materialize_grads=True
            )
            for j in range(len(U)):
                vector = [rows[n][j].view_as(p) for n, p in theta.items()]
                curved = torch.autograd.grad(
                    slope, leaves, vector, retain_graph=True, materialize_grads=True
                )
                for name, x in zip(theta, curved, strict=True):
                    receive(j, (rows[name] @ x.flatten()).double())

    def add(column: int, products_of_rows: Tensor) -> None:
        out[:, column] += products_of_rows

    map_micro_batches(policy, E, multiply, add)
    policy.sum_over_processes([out])
    return -(products + out.cpu())


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
