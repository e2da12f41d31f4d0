"""Proxies, against one-line formulas and against the exact derivative of one state's entropy."""

import math

import pytest
import torch

from isentrope import Policy, Rollouts, Scores, score
from isentrope.attribution.proxies import proxies
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from isentrope.update.step import compute_step
from tests import cases

VOCABULARY, PROMPT = 5, 2


def batch(n=6, t=5, seed=0):
    """(s, H, mask, A): random, 0 where there is no token."""
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.rand(n, t, generator=generator, dtype=torch.float64) for _ in range(2)]
    mask = torch.arange(t) < torch.randint(1, t + 1, (n,), generator=generator)[:, None]
    s, h = (torch.where(mask, x, 0.0) for x in (draws[0].log(), draws[1]))
    return s, h, mask, torch.randn(n, generator=generator, dtype=torch.float64)


def tokens_of(s, h, mask, advantages):
    """(i, k, s, H, A) of every token."""
    for i, k in mask.nonzero().tolist():
        yield i, k, float(s[i, k]), float(h[i, k]), float(advantages[i])


def test_every_token_proxy_is_its_formula():
    s, h, mask, a = batch()
    means = torch.where(mask, s.square(), 0.0)
    found = proxies.token_proxies(Scores(s, h, mask), a, means)
    tokens = list(tokens_of(s, h, mask, a))
    n = len(tokens)
    mean_s, mean_a = sum(x[2] for x in tokens) / n, sum(x[4] for x in tokens) / n
    mean_d = sum(math.exp(x[2]) * (x[3] + x[2]) for x in tokens) / n
    for i, k, s_ik, h_ik, a_i in tokens:
        formulas = {
            "token_covariance": -(s_ik - mean_s) * (a_i - mean_a),
            "discriminator": -a_i * math.exp(s_ik) * (h_ik + s_ik),
            "centred_discriminator": -a_i * (math.exp(s_ik) * (h_ik + s_ik) - mean_d),
            "local_change": -a_i * (math.exp(s_ik) * (h_ik + s_ik) - float(means[i, k])),
            "steer": -a_i / math.exp(s_ik) * math.exp(s_ik) * (1 - math.exp(s_ik)) * (s_ik + h_ik),
            "surprisal_advantage": a_i * -s_ik,
            "advantage": a_i,
            "entropy": h_ik,
        }
        for name, value in formulas.items():
            assert float(found[name][i, k]) == pytest.approx(value, rel=1e-12), name


def test_nothing_is_predicted_where_there_is_no_token():
    s, h, mask, a = batch()
    for name, x in proxies.token_proxies(Scores(s, h, mask), a).items():
        assert not bool(x[~mask].any()), name


def test_the_covariance_of_responses_is_over_responses():
    s, h, mask, a = batch()
    total = torch.stack([row[m].sum() for row, m in zip(s, mask, strict=True)])
    found = proxies.sequence_proxies(Scores(s, h, mask), a)
    torch.testing.assert_close(
        found["sequence_covariance"], -(total - total.mean()) * (a - a.mean())
    )
    torch.testing.assert_close(found["surprisal_advantage"], -total * a)
    assert torch.equal(found["advantage"], a)


def test_a_fifth_of_the_tokens_are_forking():
    h = torch.arange(20, dtype=torch.float64).reshape(4, 5) % 17
    mask = torch.ones(4, 5, dtype=torch.bool)
    assert sorted(h[proxies.top_entropy(h, mask) == 1].tolist()) == [13, 14, 15, 16]
    assert int(proxies.top_entropy(h, mask, share=0.01).sum()) == 1
    assert int(proxies.top_entropy(torch.zeros_like(h), mask).sum()) == 20


@pytest.mark.parametrize("bits", [1, -1])
def test_tokens_of_one_entropy_are_all_forking_or_none(bits):
    """Responses to one prompt begin in one state, whose entropy each finds up to rounding."""
    entropies = torch.tensor([[1.0, 0.2]] * 5 + [[2.0, 0.3]], dtype=torch.float64)
    noisy = entropies * (1 + bits * 2e-16 * torch.arange(6).double()[:, None])
    mask = torch.ones(6, 2, dtype=torch.bool)
    expected = torch.tensor([[1.0, 0.0]] * 6, dtype=torch.float64)
    assert torch.equal(proxies.top_entropy(noisy, mask), expected)


def one_token_responses():
    """Every token as a response of one token to one prompt of a softmax table."""
    responses = [[a] for a in range(VOCABULARY)]
    rollouts = Rollouts([[PROMPT]], responses, [0] * VOCABULARY)
    return cases.policy("table", VOCABULARY), rollouts


def state_entropy_derivative(policy, rollouts, direction):
    return float(score_along(policy, rollouts, direction, 1)[1].entropies[0, 0])


def test_the_discriminator_is_the_derivative_along_the_tokens_own_logit():
    policy, rollouts = one_token_responses()
    scores = score(policy, rollouts)
    found = -proxies.discriminator(scores.logprobs, scores.entropies)
    row = int(
        weighted_gradient(policy, rollouts.select([0]), torch.ones(1, 1))["table"].any(1).nonzero()
    )
    for token in range(VOCABULARY):
        logit = torch.zeros_like(policy.theta["table"])
        logit[row, token] = 1.0
        exact = state_entropy_derivative(policy, rollouts, {"table": logit})
        assert float(found[token, 0]) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_mean_discriminator_is_over_the_models_own_vocabulary(temperature):
    policy = Policy(cases.model("qwen2"), eos_token_id=0, temperature=temperature, max_tokens=40)
    U = cases.ragged(7)
    means = proxies.mean_discriminators(policy, U)
    for i, (prompt, response) in enumerate(zip(U.prompt_ids, U.response_ids, strict=True)):
        with policy.precision.active():
            logits = policy.model(torch.cat((prompt, response))[None]).logits[0].detach()
        for k in range(len(response)):
            p = (logits[len(prompt) + k - 1] / temperature).softmax(-1).tolist()
            entropy = -sum(x * math.log(x) for x in p)
            expected = sum(x * x * (entropy + math.log(x)) for x in p)
            assert float(means[i, k]) == pytest.approx(expected, rel=1e-9, abs=1e-14)
    assert not means[~U.mask].any()


def test_stare_names_the_most_surprising_tenth_of_either_sign():
    s, _, mask, a = batch(n=16, t=9)
    found = proxies.stare(s, mask, a)
    for sign in (1, -1):
        tokens = [x for x in tokens_of(s, s, mask, a) if sign * x[4] > 0]
        tenth = sorted(tokens, key=lambda x: x[2])[: round(len(tokens) / 10)]
        assert tenth
        chosen = {(i, k) for i, k in (found == sign).nonzero().tolist()}
        assert chosen == {x[:2] for x in tenth}


def test_stare_predicts_nothing_without_advantages():
    s, _, mask, _ = batch()
    assert not proxies.stare(s, mask, torch.zeros(len(s))).any()


def expected_discriminator(all_logprobs):
    """Σ_a π_a S*_a over the vocabulary."""
    p = all_logprobs.exp()
    return float((p * proxies.discriminator(all_logprobs, -(p * all_logprobs).sum())).sum())


@pytest.mark.parametrize("token", range(VOCABULARY))
@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_the_local_change_is_exact_for_a_step_on_a_table(token, advantage):
    policy, every = one_token_responses()
    drawn = every.select([token]).with_columns(advantages=torch.tensor([advantage]))
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    step = compute_step(policy, drawn, optimizer, max_response_length=7)
    exact = state_entropy_derivative(policy, drawn, step.direction)
    all_logprobs = score(policy, every).logprobs[:, 0]
    here = score(policy, drawn)
    own = proxies.discriminator(here.logprobs, here.entropies)
    found = -advantage * (float(own) - expected_discriminator(all_logprobs))
    assert found / 7 == pytest.approx(exact, rel=1e-12)
    means = proxies.mean_discriminators(policy, drawn)
    change = proxies.local_change(own, means, drawn.advantages)
    assert float(change) / 7 == pytest.approx(exact, rel=1e-12)


def test_without_its_centring_the_discriminator_is_not_exact_for_such_a_step():
    policy, every = one_token_responses()
    all_logprobs = score(policy, every).logprobs[:, 0]
    expected = expected_discriminator(all_logprobs)
    naive = sum(
        float(s.exp() ** 2 * (s - (all_logprobs.exp() * all_logprobs).sum())) for s in all_logprobs
    )
    assert expected == pytest.approx(naive, rel=1e-12)
    assert abs(expected) > 0.01


def test_entropy_falls_where_likely_tokens_are_rewarded_and_rises_where_rare_ones_are():
    s, h = torch.tensor([[-0.1], [-5.0]]).double(), torch.full((2, 1), 0.4, dtype=torch.float64)
    mask, up = torch.ones(2, 1, dtype=torch.bool), torch.tensor([1.0, 1.0])
    found = proxies.token_proxies(Scores(s, h, mask), up)["discriminator"]
    assert float(found[0]) < 0 < float(found[1])
