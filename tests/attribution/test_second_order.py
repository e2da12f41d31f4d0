"""K₂ against nested forward mode, the oracle and differences of the entropy itself."""

import pytest
import torch

from isentrope import GradientOptions
from isentrope.attribution.fisher.second_order import second_order_change, second_order_kernel
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.policy.gradient import weighted_gradient
from tests import cases
from tests.attribution import differences

POLICIES = [("table", "loop"), ("qwen2", "hooks"), ("llama", "hooks")]


def batches(name):
    """(exact policy, E, U, x) with E and U drawn apart."""
    exact = cases.small_exact(name)
    E, U = exact.sample(24, seed=1), exact.sample(5, seed=2)
    return exact, E, U, torch.linspace(-1, 1.5, 5, dtype=torch.float64)


def sgd_direction(policy, U, x):
    """v = Σ x ∂S."""
    return weighted_gradient(policy, U, x[:, None] * score_sums(U).logprob_weights)


@pytest.mark.parametrize(("name", "backend"), POLICIES)
def test_it_is_the_second_order_of_nested_forward_mode(name, backend):
    exact, E, U, x = batches(name)
    K2 = second_order_kernel(exact.policy, E, U, gradients=GradientOptions(backend))
    nested = second_order_change(exact.policy, E, sgd_direction(exact.policy, U, x))
    assert float(x @ K2 @ x) / 2 == pytest.approx(nested.value, rel=1e-8)
    torch.testing.assert_close(K2, K2.T, rtol=1e-9, atol=1e-9 * float(K2.abs().max()))


def test_every_entry_is_a_mixed_second_order():
    policy, U = cases.lora_policy("llama"), cases.ragged(3, seed=5)
    E = cases.ragged(9, seed=6)
    K2 = second_order_kernel(policy, E, U)
    for i, j in ((0, 0), (1, 2)):
        along, across = (torch.zeros(3, dtype=torch.float64) for _ in range(2))
        along[i] += 1
        along[j] += 1
        across[i] += 1
        across[j] -= 1
        plus, minus = (
            second_order_change(policy, E, sgd_direction(policy, U, x)).value
            for x in (along, across)
        )
        assert float(K2[i, j]) == pytest.approx((plus - minus) / 2, rel=1e-7)


@pytest.mark.parametrize(("name", "backend"), POLICIES)
def test_with_exact_weights_it_is_the_oracles_second_derivative(name, backend):
    exact, _, U, x = batches(name)
    omega = exact.probabilities()
    K2 = second_order_kernel(
        exact.policy, exact.rollouts, U, omega=omega, gradients=GradientOptions(backend)
    )
    v = sgd_direction(exact.policy, U, x)
    truth = exact.derivatives(v, "sequence")[1]
    assert float(x @ K2 @ x) / 2 == pytest.approx(truth, rel=1e-8)


def test_micro_batches_and_the_scale_of_the_weights_change_nothing():
    U, E = cases.ragged(3, seed=5), cases.ragged(9, seed=6)
    omega = torch.rand(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = second_order_kernel(cases.lora_policy("qwen2"), E, U, omega=omega)
    policy = cases.lora_policy("qwen2")
    policy.max_tokens = 16
    cut = second_order_kernel(policy, E, U, omega=7 * omega)
    torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-9)


def test_value_and_error_are_those_of_the_jackknife_over_prompts():
    """−½ (mean c + cov(S, q)), c = (∂S)², q = ∂²S + c: its influences written out."""
    policy, v = cases.policy("qwen2"), cases.direction(cases.policy("qwen2"))
    E = cases.ragged(12)
    prompts = [E.prompt_ids[i // 2 * 2] for i in range(12)]
    E = E.with_columns(prompt_ids=prompts, prompt_index=torch.arange(12) // 2)
    found = second_order_change(policy, E, v)
    s, first, second = (x[0].sum(1) for x in differences.derivatives(policy, E, v, 1e-3))
    c, q = first.square(), second + first.square()
    of_mean, of_covariance = c - c.mean(), (s - s.mean()) * (q - q.mean())
    assert found.value == pytest.approx(-float((c + of_covariance).mean()) / 2, rel=1e-6)
    influences = -(of_mean + of_covariance - of_covariance.mean()) / 2 / 12
    expected = differences.error_over_units(influences, E.prompt_index)
    assert found.se == pytest.approx(expected, rel=1e-6)
    assert (found.n, found.unit) == (6, "nats per sequence per η²")
