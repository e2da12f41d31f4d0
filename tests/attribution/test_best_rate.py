"""The best rate at another batch size, against a quadratic whose noise is known."""

import math

import pytest
import torch

from isentrope import Estimate
from isentrope.attribution.noise.consequences import BestRate, averaged_batches


def estimate(value, half=0.0):
    return Estimate(value, half / 2, value - half, value + half, 40, "", "")


def best_of_quadratic(G, H, noise, prompts):
    """argmax over η of E[J(ηv)] for v = G + noise of a batch, by a fine search."""
    eta = torch.linspace(0, 2, 200_001, dtype=torch.float64)
    gained = float(G @ G) * eta
    lost = (float(G @ H @ G) + float((H @ noise).trace()) / prompts) * eta**2 / 2
    return float(eta[(gained - lost).argmax()])


def test_it_is_the_best_rate_of_a_quadratic_at_every_batch_size():
    G = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
    H = 3.0 * torch.eye(3, dtype=torch.float64)
    noise = torch.diag(torch.tensor([4.0, 1.0, 7.0], dtype=torch.float64))
    scale = float(noise.trace() / (G @ G))
    best = BestRate(estimate(best_of_quadratic(G, H, noise, 8)), estimate(scale), 8, 1.0)
    for prompts in (2, 8, 64):
        expected = best_of_quadratic(G, H, noise, prompts)
        assert best.at(prompts).value == pytest.approx(expected, rel=1e-3)
    assert best.at(math.inf).value == pytest.approx(1 / 3, rel=1e-3)
    without = best.at(math.inf).value
    assert best.lost.value == pytest.approx(1 - best.at(8).value / without, rel=1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_momentum_averages_the_batches_that_its_weights_say(beta):
    weights = (1 - beta) * torch.tensor(beta, dtype=torch.float64) ** torch.arange(1000)
    groups = [{"betas": [beta, 0.999], "lr": 1.0}, {"betas": [beta, 0.999], "lr": 2.0}]
    assert averaged_batches(groups) == pytest.approx(1 / float(weights.square().sum()))
    assert averaged_batches([{"momentum": beta}]) == averaged_batches(groups)
    assert averaged_batches([*groups, {"betas": [0.99, 0.999]}]) is None


def test_the_range_holds_both_intervals_and_noise_below_zero_counts_as_none():
    best = BestRate(estimate(0.1, 0.02), estimate(30.0, 50.0), 10, 1.0)
    most = best.at(math.inf)
    assert (most.low, most.high) == (pytest.approx(0.08), pytest.approx(0.12 * 9))
    assert best.lost.low == 0
    assert best.known
    endless = Estimate(30.0, 9.0, 4.0, math.inf, 40, "", "")
    assert not BestRate(estimate(0.1, 0.02), endless, 10, 1.0).known
