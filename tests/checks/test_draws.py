"""Counts of draws against sums over every response of an enumerated policy."""

import math

import pytest
import torch

from isentrope import Policy, Rollouts, score
from isentrope.checks.draws import count_draws
from isentrope.policy.tails import FILTER_SETTINGS, tail_places
from tests import cases


@pytest.mark.parametrize("max_tokens", [16, 8192])
def test_events_are_counted_against_their_probability(max_tokens):
    policy = cases.policy("qwen2", temperature=0.8, max_tokens=max_tokens)
    rollouts = cases.ragged()
    draws = count_draws(policy, rollouts)
    expected, seen, drawn = 0.0, 0.0, 0
    for prompt, response in zip(rollouts.prompt_ids, rollouts.response_ids, strict=True):
        for k, token in enumerate(response):
            before = torch.cat([prompt, response[:k]])
            p = torch.zeros(5).double()
            for a in range(5):  # each token as the next one of the same prefix
                one = Rollouts([before], [torch.tensor([a])], torch.zeros(1))
                p[a] = score(policy, one).logprobs.exp()[0, 0]
            expected += float(p[0])
            seen += float(p[before.unique()].sum())
            drawn += bool((before == token).any())
    assert draws.eos.expected == pytest.approx(expected, rel=1e-9)
    assert draws.eos.observed == sum(int((r == 0).sum()) for r in rollouts.response_ids)
    assert draws.repetitions.expected == pytest.approx(seen, rel=1e-9)
    assert draws.repetitions.observed == drawn


def test_tails_are_masses_of_the_tokens_that_a_filter_keeps():
    p = torch.tensor([[0.1, 0.5, 0.08, 0.02, 0.3]]).double()
    (k, at_k), (mass, at_p), (ratio, at_m) = tail_places(p, torch.tensor([2]))
    assert [math.exp(x) for x in k[0, :5]] == pytest.approx([0.5, 0.8, 0.9, 0.98, 1])
    assert FILTER_SETTINGS["top_k"][int(at_k)] == 4
    assert FILTER_SETTINGS["top_p"][int(at_p)] > 0.9  # the mass before it
    assert FILTER_SETTINGS["top_p"][int(at_p) - 1] <= 0.9
    assert float(mass[0, int(at_p)].exp()) == pytest.approx(0.98)
    assert float(ratio[0, int(at_m)].exp()) == pytest.approx(0.98)
    assert float(mass[0, -1]) == float(k[0, -1]) == float(ratio[0, -1]) == 0


def test_equal_probabilities_are_no_filter():
    model = cases.model("qwen2", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    uniform = Policy(model, eos_token_id=0, pad_token_id=0)
    rollouts = Rollouts([[1]] * 60, [[1 + i % 4, i % 5] for i in range(60)], torch.arange(60))
    for found in count_draws(uniform, rollouts).filters:
        assert found.p_value > 1e-3


def test_a_policy_without_EOS_has_no_count_of_it():
    policy = cases.policy("qwen2", eos_token_id=None)
    policy.eos_token_id = None
    assert count_draws(policy, cases.ragged()).eos is None
