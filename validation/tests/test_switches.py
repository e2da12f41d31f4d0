"""What `validation.switches` takes for the truth."""

import pytest
import torch

from validation.chains import CHAINS
from validation.switches import FewRewards


@pytest.mark.parametrize("name", CHAINS)
def test_truth_of_a_chain_is_the_mean_of_its_responses(name):
    chain, n = CHAINS[name](), 20_000
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(len(chain.start), (n,), generator=generator)
    heights = torch.rand(n, chain.longest, generator=generator, dtype=torch.float64)
    batch = chain.draw(chain.log_p(), prompts, heights)
    eta = chain.eta_of(0.9)
    here, (there, _) = chain.scores(*batch)[0], chain.moved(eta, *batch)
    weights = (there.logprobs - here.logprobs).sum(1).exp()
    for rate, scores, w in ((0.0, here, torch.ones(n)), (eta, there, weights)):
        sums = w * scores.entropies.sum(1)
        error = float(sums.std()) / n**0.5
        assert abs(float(sums.mean()) - chain.truth("per_sequence", rate)) < 4 * error
    squares = weights.square()
    error = float(squares.std()) / n**0.5
    assert abs(float(squares.mean()) - 1 / chain.exact_ess(eta)) < 4 * error


@pytest.mark.parametrize("name", CHAINS)
def test_derivatives_of_a_chain_are_those_of_differences(name):
    chain, h = CHAINS[name](), 1e-4

    def tables(eta):
        log_p = chain.log_p(eta)
        return log_p, -(log_p.exp() * log_p).sum(1)

    up, here, down = tables(h), tables(0.0), tables(-h)
    for k in (0, 1):
        assert torch.allclose((up[k] - down[k]) / (2 * h), chain.series[1][k], atol=1e-6)
        second = (up[k] - 2 * here[k] + down[k]) / h**2
        assert torch.allclose(second, chain.series[2][k], atol=1e-5)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_truth_of_few_rewards_is_their_mean(share):
    chain, n = CHAINS["modes"](), 40_000
    eta = chain.eta_of(0.9)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(len(chain.start), (n,), generator=generator)
    heights = torch.rand(n, chain.longest, generator=generator, dtype=torch.float64)
    states, tokens = chain.draw(chain.log_p(), prompts, heights)
    few = FewRewards.expecting(share, chain, eta)
    rewards = few.rewards(tokens, heights)
    assert abs(float(rewards.mean()) - few.truth["J"]) < 4 * float(rewards.std()) / n**0.5
    there, here = chain.moved(eta, states, tokens)[0], chain.scores(states, tokens)[0]
    change = ((there.logprobs - here.logprobs).sum(1).exp() - 1) * rewards
    assert abs(float(change.mean()) - few.truth["ΔJ"]) < 4 * float(change.std()) / n**0.5


def test_more_rewards_than_responses_that_can_earn_them_are_no_case():
    chain = CHAINS["modes"]()
    assert FewRewards.expecting(0.625, chain, chain.eta_of(0.9)) is None
