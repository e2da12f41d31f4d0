"""A supervised loss, its change by one SGD step, and its noise scale, from the Fisher kernel."""

import pytest
import torch

from isentrope import GradientOptions, Rollouts, score
from isentrope.attribution.fisher.second_order import supervised_loss_change, supervised_noise_scale
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from tests import cases

POLICIES = [("table", "loop"), ("qwen2", "hooks"), ("llama", "hooks")]


def demonstrations(n: int, seed: int) -> Rollouts:
    """Random responses of at most four tokens, which no policy has sampled."""
    drawn = cases.ragged(n, seed=seed)
    return drawn.with_columns(
        prompt_ids=[p[:1] for p in drawn.prompt_ids],
        response_ids=[r[:4] for r in drawn.response_ids],
    )


def setting(name: str):
    """(policy, E, U) with E's demonstrations in pairs of one prompt draw."""
    E, U = demonstrations(12, seed=1), demonstrations(5, seed=2)
    prompts = [E.prompt_ids[i // 2 * 2] for i in range(12)]
    return (
        cases.policy(name),
        E.with_columns(prompt_ids=prompts, prompt_index=torch.arange(12) // 2),
        U,
    )


def sgd_direction(policy, U):
    """−∂L_U."""
    return weighted_gradient(policy, U, score(policy, U).mask.double() / len(U))


@pytest.mark.parametrize(("name", "backend"), POLICIES)
def test_both_orders_from_the_kernel_are_those_of_nested_forward_mode(name, backend):
    policy, E, U = setting(name)
    found = supervised_loss_change(policy, E, U, gradients=GradientOptions(backend))
    s, first, second = (
        x.logprobs.sum(1) for x in score_along(policy, E, sgd_direction(policy, U), 2)
    )
    assert found["loss"].value == pytest.approx(-float(s.mean()), rel=1e-12)
    assert found["first_order"].value == pytest.approx(-float(first.mean()), rel=1e-10)
    assert found["second_order"].value == pytest.approx(-float(second.mean()) / 2, rel=1e-10)
    squared = float(first.square().mean()) / 2
    assert found["squared_kernel"].value == pytest.approx(squared, rel=1e-10)
    K = gram(policy, score_sums(E), score_sums(U), gradients=GradientOptions(backend))
    pairs = K.T @ K / len(E)
    assert float(pairs.sum()) / (2 * len(U) ** 2) == pytest.approx(squared, rel=1e-10)


@pytest.mark.parametrize(("name", "backend"), POLICIES)
def test_the_measured_change_leaves_a_remainder_of_third_order(name, backend):
    policy, E, U = setting(name)
    eta = 1e-2 if name == "table" else 1e-4
    found = supervised_loss_change(policy, E, U, gradients=GradientOptions(backend))
    v = sgd_direction(policy, U)

    def remainder(eta):
        moved = score(policy, E, policy.parameters_along(v, eta)).logprobs.sum(1)
        change = float((score(policy, E).logprobs.sum(1) - moved).mean())
        return change - eta * found["first_order"].value - eta**2 * found["second_order"].value

    assert remainder(eta) / remainder(eta / 2) == pytest.approx(8, abs=0.5)


@pytest.mark.parametrize(("name", "backend"), POLICIES)
def test_the_curvature_term_is_zero_over_the_models_own_responses(name, backend):
    """Σ_t π ∂²π/π = 0: there the Hessian of the loss is the Fisher matrix."""
    exact = cases.exact(name)
    policy, U = exact.policy, exact.sample(4, seed=3)
    _, slope, bend = (
        x.logprobs.sum(1) for x in score_along(policy, exact.rollouts, sgd_direction(policy, U), 2)
    )
    pi = exact.probabilities() / exact.n_prompts
    assert abs(float(pi @ (bend + slope.square()))) < 1e-10 * float(pi @ slope.square())
    found = supervised_loss_change(
        policy, exact.sample(400, seed=4), U, gradients=GradientOptions(backend)
    )
    assert abs(found["curvature"].value) < 4 * found["curvature"].se


def test_errors_are_over_prompts_not_sequences():
    policy, E, U = setting("qwen2")
    found = supervised_loss_change(policy, E, U)
    assert found["loss"].n == 6
    K = gram(policy, score_sums(E), score_sums(U))
    pairs = K.mean(1).reshape(6, 2).mean(1)
    assert found["first_order"].se == pytest.approx(float(pairs.std()) / 6**0.5, rel=1e-9)


def test_noise_scales_are_those_of_dense_gradients_and_a_dense_fisher_matrix():
    policy, E, U = cases.policy("qwen2"), demonstrations(9, seed=1), demonstrations(6, seed=2)
    found = supervised_noise_scale(policy, E, U)
    left, right = (torch.stack([_flat(policy, x, i) for i in range(len(x))]) for x in (E, U))
    fisher = left.T @ left / len(E)
    n, mean, spread = 6, right.mean(0), right - right.mean(0)
    for scale, H in zip(found, (torch.eye(len(fisher)).double(), fisher), strict=True):
        trace = ((spread @ H) * spread).sum() / (n - 1)
        assert scale.trace.value == pytest.approx(float(trace), rel=1e-10)
        square = mean @ H @ mean - trace / n
        assert scale.gradient_square.value == pytest.approx(float(square), rel=1e-9)
        assert scale.b_simple.unit == "examples"


def _flat(policy, rollouts, i):
    one = rollouts.select([i])
    gradient = weighted_gradient(policy, one, torch.ones(1, len(one.response_ids[0])))
    return torch.cat([g.flatten() for g in gradient.values()])


def test_expected_orders_are_the_mean_over_batches_of_fresh_examples():
    """Batches of B from a population: mean −|G|² and ½ (Gᵀ H G + tr(H Σ)/B), population G and Σ."""
    exact, size = cases.exact("qwen2"), 3
    policy, E = exact.policy, demonstrations(12, seed=1)
    population = demonstrations(40, seed=5)
    _, curved = supervised_noise_scale(policy, E, population)
    K = gram(policy, score_sums(E), score_sums(population))
    generator = torch.Generator().manual_seed(0)
    batches = torch.randint(40, (40_000, size), generator=generator)
    squares = K[:, batches].mean(2).square().mean(0) / 2  # (batches,)
    error = float(squares.std()) / len(batches) ** 0.5
    # of the 40 taken as the population: tr Σ is over 40, not 39, and |G|² is |ḡ|²
    trace = curved.trace.value * 39 / 40
    square = curved.gradient_square.value + curved.trace.value / 40
    assert float(squares.mean()) == pytest.approx((square + trace / size) / 2, abs=4 * error)


def test_what_cannot_be_measured_is_refused_in_a_sentence():
    policy, E, U = setting("qwen2")
    with pytest.raises(ValueError, match=r"12 examples .* 6 prompt draws"):
        supervised_noise_scale(policy, U, E)
    with pytest.raises(ValueError, match=r"examples .* 3 "):
        supervised_noise_scale(policy, E, U.select(range(3)))
