"""What the score vectors span, against the kernel of every response by differences."""

import pytest
import torch

from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.oracle import TabularPolicy, enumerate_policy
from isentrope.policy.language_model import Policy
from studies import theory_typical
from studies.theory_policies import all_responses, gradient_matrix
from tests.exact_kernel import exact_kernel

V, LENGTH = 3, 3


def reward(rollouts):
    return theory_typical.share_of_first(torch.stack(rollouts.response_ids))


@pytest.mark.parametrize("memory", [1, 2])
def test_the_share_of_a_random_reward_is_that_of_the_projection_on_the_kernel(memory):
    """ρ = E‖Πa‖²/E‖a − ā‖² with Π from the eigenvectors of √π K √π."""
    policy = Policy(TabularPolicy(V, LENGTH, memory=memory), eos_token_id=())
    exact = enumerate_policy(policy, [[1]], LENGTH)
    pi, root = exact.probabilities(), exact.probabilities().sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * exact_kernel(exact) * root)
    onto = vectors[:, values > 1e-8 * values[-1]]
    Pi = onto @ onto.T  # on √π a
    noise = torch.diag(pi)  # covariance of √π a, a independent of variance one
    centring = torch.eye(len(pi)) - torch.outer(root, root)
    a = root * (reward(exact.rollouts) - pi @ reward(exact.rollouts))

    w = gradient_matrix(policy, score_sums(all_responses([1], V, LENGTH)), "loop")
    found = theory_typical.freedom(w, pi, reward(exact.rollouts))
    rho = float((Pi @ noise @ Pi).trace() / (centring @ noise @ centring).trace())
    assert found.rank == onto.shape[1] == (6 if memory == 1 else 20)
    assert found.any_reward == pytest.approx(rho, rel=1e-9)
    assert found.reward == pytest.approx(float((Pi @ a).square().sum() / (a @ a)), rel=1e-9)
    assert found.effective == pytest.approx(
        float(values.sum() ** 2 / values.square().sum()), rel=1e-9
    )


def test_scores_from_transition_counts_are_those_of_the_policy():
    policy = theory_typical.policies(0)["Markov table"]
    responses = all_responses(theory_typical.PROMPT, V, LENGTH)
    by_counts, log_p = theory_typical.markov_scores(policy.model.table.detach()[1:], responses)
    w = gradient_matrix(policy, score_sums(responses), "loop")[:, V:]
    torch.testing.assert_close(by_counts, w, rtol=0, atol=1e-12)
    assert float(log_p.exp().sum()) == pytest.approx(1)


def test_where_there_are_more_parameters_than_responses_every_reward_can_be_followed():
    w = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pi = torch.full((5,), 0.2, dtype=torch.float64)
    w -= pi @ w  # scores have mean zero
    found = theory_typical.freedom(w, pi, torch.arange(5.0).double())
    assert (found.rank, found.any_reward, found.reward) == pytest.approx((4, 1, 1))
