"""The cost of draws with replacement, against every draw from a set of four prompts."""

import itertools
import math

import pytest
import torch

from studies.with_replacement import cost, distinct, of_group, share_of_prompts, with_interval

PROMPTS = torch.tensor([0.1, 0.5, 0.9, 2.0], dtype=torch.float64)
NOISE = 0.3
"""Standard deviation of a response around its prompt's mean."""


def variance_over(draws, responses):
    """Of the mean of a draw of prompts, by enumeration, with the noise of their responses."""
    means = torch.stack([PROMPTS[list(draw)].mean() for draw in draws])
    m = len(draws[0])
    return float(means.var(correction=0)) + NOISE**2 / (m * responses)


@pytest.mark.parametrize("responses", [1, 4])
@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_cost_is_that_of_every_draw(m, responses):
    every = list(itertools.product(range(4), repeat=m))
    different = list(itertools.permutations(range(4), m))
    ratio = variance_over(every, responses) / variance_over(different, responses)
    between = float(PROMPTS.var(correction=0))
    rho = of_group(between / (between + NOISE**2), responses)
    assert cost(rho, m, 4) == pytest.approx(ratio - 1, rel=1e-9)
    assert distinct(m, 4) == pytest.approx(sum(len(set(x)) for x in every) / len(every))


def test_prompts_alone_cost_everything_where_each_is_drawn_once():
    assert math.isinf(cost(1.0, 1319))
    assert cost(1.0, 1) == 0


def test_the_share_is_unbiased_and_its_interval_holds_it():
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(200):
        means = torch.randn(40, 1, generator=generator, dtype=torch.float64)
        values = means + 2 * torch.randn(40, 4, generator=generator, dtype=torch.float64)
        value, low, high = with_interval(values)
        assert value == share_of_prompts(values)
        shares.append(low <= 0.2 <= high)
    assert sum(shares) >= 180
