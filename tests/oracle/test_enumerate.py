import pytest
import torch

from isentrope import Policy, score
from isentrope.nouns.vectors import dot
from isentrope.oracle import TabularPolicy, enumerate_policy
from tests import cases


@pytest.mark.parametrize("name", cases.POLICIES)
def test_probabilities_of_all_responses_sum_to_one(name):
    exact = cases.exact(name)
    total = exact.probabilities().reshape(exact.n_prompts, -1).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", cases.POLICIES)
def test_sum_of_conditional_entropies_is_the_entropy_of_the_responses(name):
    exact = cases.exact(name)
    log_p = score(exact.policy, exact.rollouts).logprobs.sum(1)
    brute = -(log_p.exp() * log_p).sum() / exact.n_prompts
    assert exact.entropy("sequence") == pytest.approx(float(brute), rel=1e-12)


def test_derivatives_of_one_softmax_are_the_closed_form():
    """H = log Z − E l: H' = −Cov(l, v), H'' = −Var v − Cov(l, (v − E v)²)."""
    table = TabularPolicy(4, 1, scale=1.5)
    exact = enumerate_policy(Policy(table), [[1]], max_new_tokens=1)
    logits, v = table.table[2].detach(), torch.tensor([0.4, -1.0, 2.0, 0.3], dtype=torch.float64)
    p = logits.softmax(0)
    along = v - p @ v
    expected = (
        -float(p @ (logits * along)),
        -float(p @ (along**2 + (logits - p @ logits) * along**2)),
    )
    direction = {"table": torch.zeros_like(table.table).index_put((torch.tensor(2),), v)}
    first, second = exact.derivatives(direction)
    assert first == pytest.approx(expected[0], rel=1e-11)
    assert second == pytest.approx(expected[1] / 2, rel=1e-9)


@pytest.mark.parametrize("per", cases.PERS)
@pytest.mark.parametrize("name", cases.POLICIES)
def test_what_derivatives_leave_falls_eightfold_and_the_gradient_agrees(name, per):
    exact = cases.small_exact(name)
    v = cases.direction(exact.policy)
    first, second = exact.derivatives(v, per)

    def remainder(eta):
        return exact.entropy_change(v, eta, per) - eta * first - eta**2 * second

    assert abs(remainder(4e-3) / remainder(2e-3)) == pytest.approx(8, abs=0.8)
    gradient = exact.entropy_gradient(per)
    assert dot(gradient, v) == pytest.approx(first, rel=1e-8)


def test_coupled_draws_share_prompts_and_most_responses():
    exact = cases.exact("qwen2")
    moved = exact.policy.parameters_along(cases.direction(exact.policy), 1e-4)
    here, there = exact.draw(500, 0), exact.draw(500, 0, exact.probabilities(moved))
    assert torch.equal(exact.rollouts.prompt_index[here], exact.rollouts.prompt_index[there])
    assert 0.9 < float((here == there).double().mean()) < 1


def test_a_policy_too_large_to_enumerate_is_refused(monkeypatch):
    monkeypatch.setattr("isentrope.oracle.enumerate.MOST_RESPONSES", 340)
    with pytest.raises(ValueError, match="smaller vocabulary"):
        enumerate_policy(cases.policy("qwen2"), [[1]], max_new_tokens=4)
    monkeypatch.setattr("isentrope.oracle.enumerate.MOST_RESPONSES", 341)  # 85 end, 256 are cut
    enumerate_policy(cases.policy("qwen2"), [[1]], max_new_tokens=4)


def test_a_float32_policy_is_refused():
    with pytest.raises(ValueError, match="float64"):
        enumerate_policy(cases.policy("qwen2", precision="float32"), [[1]], max_new_tokens=2)
