"""The exact kernel, held against what a kernel has to be; by differences it takes small trees."""

import pytest
import torch

from isentrope import score
from isentrope.nouns.vectors import multiply
from isentrope.policy.gradient import weighted_gradient
from tests import cases
from tests.exact_kernel import exact_kernel

SOME = torch.tensor([0, 3, 9, 12, 20, 28])


def positive(policy):
    """A diagonal P."""
    return {n: v.abs() + 0.1 for n, v in cases.direction(policy, seed=4).items()}


@pytest.mark.parametrize("name", cases.POLICIES)
def test_a_step_on_one_response_moves_log_probabilities_by_its_column(name):
    exact = cases.small_exact(name)
    policy, P, j = exact.policy, positive(exact.policy), 9
    column = exact_kernel(exact, P, rows=SOME, columns=torch.tensor([j]))[:, 0]
    one = exact.rollouts.select([j])
    v = multiply(P, weighted_gradient(policy, one, torch.ones(1, len(one.response_ids[0]))))
    ahead, behind = (
        score(policy, exact.rollouts.select(SOME), policy.parameters_along(v, eta)).logprobs.sum(1)
        for eta in (1e-6, -1e-6)
    )
    torch.testing.assert_close(column, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", cases.POLICIES)
def test_the_kernel_averages_to_zero_over_the_responses_to_a_prompt(name):
    """Σ_t π(t|p) ∂S(t) = 0, whatever it is multiplied with."""
    exact = cases.small_exact(name)
    K = exact_kernel(exact, columns=SOME)
    means = torch.zeros(exact.n_prompts, len(SOME), dtype=torch.float64)
    means.index_add_(0, exact.rollouts.prompt_index, exact.probabilities()[:, None] * K)
    assert float(means.abs().max()) < 1e-9 * float(K.abs().max())


@pytest.mark.parametrize("name", cases.POLICIES)
def test_the_kernel_form_of_the_first_order_is_the_derivative_of_the_entropy(name):
    """(T7) δℋ₁ = −Σ_t' x_t' E_t[S(t) K(t, t')] for v = P Σ x ∂S."""
    exact = cases.small_exact(name)
    policy, P = exact.policy, positive(exact.policy)
    x = torch.linspace(-1, 1, len(SOME), dtype=torch.float64)
    U = exact.rollouts.select(SOME)
    weights = x[:, None] * score(policy, U).mask
    v = multiply(P, weighted_gradient(policy, U, weights))
    probability = exact.probabilities() / exact.n_prompts
    by_kernel = -float((probability * probability.log()) @ exact_kernel(exact, P, columns=SOME) @ x)
    assert by_kernel == pytest.approx(exact.derivatives(v, "sequence")[0], rel=1e-8)


def test_rows_and_columns_are_those_asked_for():
    exact = cases.small_exact("qwen2")
    whole = exact_kernel(exact, rows=SOME)
    torch.testing.assert_close(whole, whole.T)
    torch.testing.assert_close(exact_kernel(exact, rows=SOME[:2], columns=SOME[3:]), whole[:2, 3:])
    assert float(torch.linalg.eigvalsh(whole).min()) > 0
    with pytest.raises(ValueError, match="different parameters"):
        exact_kernel(exact, {"other": torch.ones(1)}, rows=SOME)
