"""Influence on `compose` against autograd and differences, verdicts, and projected factors."""

import math

import pytest
import torch

from isentrope.attribution.proxies.audit import Audit
from isentrope.nouns.estimate import Estimate
from studies import compose_estimates
from studies.compose_policy import Policy
from studies.compose_run import Settings, rollouts
from studies.sketching import Projection
from studies.token_tables import verdict


@pytest.fixture(scope="module")
def step():
    """A policy of random weights in float64, and a batch of it."""
    policy = Policy(seed=3, width=16)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    settings = Settings(prompts=6, composed=2, responses=3)
    return policy.double(), rollouts(policy.double(), 0, settings, *generators)


def random_direction(policy, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for name, p in policy.named_parameters()
    }


def test_the_slopes_of_tokens_sum_to_the_derivative_by_autograd(step):
    policy, batch = step
    direction = random_direction(policy)
    weights = torch.randn(batch.logprobs.shape, dtype=torch.float64)
    slopes = compose_estimates._slope(policy, batch, direction)
    total = (weights * compose_estimates._token_logprobs(policy, batch)).sum()
    gradient = compose_estimates._gradient(policy, total)
    expected = sum(float((gradient[name] * x).sum()) for name, x in direction.items())
    assert float((weights * slopes).sum()) == pytest.approx(expected, rel=1e-5)


def test_the_change_of_an_own_state_is_the_difference_along_its_tokens_gradient(step):
    policy, batch = step
    i, k = batch.mask.nonzero()[5].tolist()
    scale = {name: x.abs() for name, x in random_direction(policy, 1).items()}
    change = compose_estimates._own_state(policy, batch, scale, i, k)
    chosen = compose_estimates._token_logprobs(policy, batch)[i, k]
    gradient = compose_estimates._gradient(policy, chosen)
    ends = []
    for length in (1e-6, -1e-6):
        for name, p in policy.named_parameters():
            p.data += length * scale[name] * gradient[name]
        every = compose_estimates._every_logprob(policy, batch)[i, k].detach()
        ends.append(float(-(every.exp() * every).sum()))
        for name, p in policy.named_parameters():
            p.data -= length * scale[name] * gradient[name]
    assert change == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


def audited(low, high):
    middle = (low + high) / 2
    estimate = Estimate(middle, 0.1, low, high, 64, "correlation", "bootstrap")
    return Audit({"x": {"spearman": estimate}}, {}, 100)


@pytest.mark.parametrize(
    ("full", "diagonal", "words"),
    [
        ((0.51, 0.9), (0.6, 0.9), "the step"),
        ((0.2, 0.9), (0.6, 0.9), "its own state alone"),
        ((-0.9, -0.1), (0.6, 0.9), "against the step"),
        ((0.2, 0.9), (0.3, 0.9), "neither"),
        ((math.nan, math.nan), (0.3, 0.9), "neither"),
    ],
)
def test_a_verdict_follows_the_intervals(full, diagonal, words):
    audits = {"step": audited(*full), "diagonal": audited(*diagonal)}
    assert verdict(audits, "x") == words


def test_projected_factors_are_the_projected_gradient():
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(3, 7, size, generator=generator) for size in (40, 30))
    projection = Projection({"w": torch.zeros(30, 40)}, 8, seed=1)
    expected = projection.of_matrix("w", g.mT @ x)
    torch.testing.assert_close(projection.of_factors("w", x, g), expected, rtol=1e-4, atol=1e-4)


def test_projected_factors_of_an_embedding_are_the_projected_gradient():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(20, (3, 7), generator=generator)
    g = torch.randn(3, 7, 30, generator=generator)
    gradients = torch.zeros(3, 20, 30)
    for i in range(3):
        gradients[i].index_add_(0, tokens[i], g[i])
    projection = Projection({"w": torch.zeros(20, 30)}, 8, seed=1)
    expected = projection.of_matrix("w", gradients)
    torch.testing.assert_close(
        projection.of_factors("w", tokens, g), expected, rtol=1e-4, atol=1e-4
    )


def test_a_projection_keeps_inner_products_on_average():
    generator = torch.Generator().manual_seed(0)
    G = torch.randn(2, 12, 15, generator=generator)
    exact = float((G[0] * G[1]).sum())
    draws = []
    for seed in range(2000):
        p = Projection({"w": torch.zeros(12, 15)}, 6, seed).of_matrix("w", G)
        draws.append(float((p[0] * p[1]).sum()))
    error = torch.tensor(draws).std() / len(draws) ** 0.5
    assert abs(sum(draws) / len(draws) - exact) < 4 * float(error)
