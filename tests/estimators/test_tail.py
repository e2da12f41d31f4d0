"""The rule of every noise: when it has an interval, and what its upper end allows for."""

import math
import re

import numpy as np
import pytest
import torch

from isentrope import entropy_noise_scale
from isentrope.attribution.noise.scale import noise_scale_of_gram
from isentrope.estimators.means import MIN_UNITS_FOR_MODES, MODE, too_few_for_modes
from isentrope.estimators.noise_over_square import noise_over_square
from isentrope.estimators.tail import LIGHT_TAILS, rare_units, tail_degrees_of_freedom


def spiked(rng, shape, share, size):
    """Norms of which a share is so many times as long, with a mean square of one."""
    mean = 1 - share + share * size**2
    return np.where(rng.random(shape) < share, size, 1.0) / mean**0.5


def noises(rng, n, share, size):
    """tr Σ and B with the truth n/16, and the entropy noise scale with the truth 1."""
    g = 60**-0.5 + (n / 16 / 60) ** 0.5 * spiked(rng, (n, 1), share, size) * rng.normal(
        size=(n, 60)
    )
    of_gradient = noise_scale_of_gram(torch.from_numpy(g @ g.T))
    x = 1 + spiked(rng, n, share, size) * rng.normal(size=n)
    of_entropy = entropy_noise_scale(torch.from_numpy(x / n), torch.arange(n)).noise_scale
    return (of_gradient.trace, n / 16), (of_gradient.b_simple, n / 16), (of_entropy, 1.0)


@pytest.mark.parametrize(
    ("n", "share", "size"),
    [
        (128, 0.01, 10),  # 28 % of the batches have no spike
        (128, 0.005, 12),  # 53 %
        pytest.param(256, 0.01, 10, marks=pytest.mark.slow),
        pytest.param(512, 0.005, 12, marks=pytest.mark.slow),
    ],
)
def test_an_interval_that_is_given_covers_where_the_batch_may_have_no_spike(n, share, size):
    """Where the upper end knew the batch alone, tr Σ was covered by .70 and .42 at 128 groups."""
    rng = np.random.default_rng(0)
    batches = [noises(rng, n, share, size) for _ in range(120)]
    for of_batches in zip(*batches, strict=True):
        closed = [(x, truth) for x, truth in of_batches if math.isfinite(x.ci_high)]
        assert len(closed) >= 30
        assert np.mean([x.covers(truth) for x, truth in closed]) >= 0.92


def test_the_upper_end_allows_for_what_even_units_may_have_missed():
    share = 1 - 0.025 ** (1 / 128)
    assert (1 - share) ** 128 == pytest.approx(0.025)
    assert rare_units(torch.ones(128), 0.95) == pytest.approx(1 + 100 * share)
    one_large = torch.cat((torch.ones(127), torch.tensor([1000.0]))).double()
    usual = (127 + 9) / (127 + 1000)
    assert rare_units(one_large, 0.95) == pytest.approx(1 + 100 * share * usual)
    assert rare_units(torch.zeros(128), 0.95) == 1


@pytest.mark.parametrize("n", [31, 32, 127, 128])
def test_every_noise_says_what_its_interval_is_and_has_no_other(n):
    for x, _ in noises(np.random.default_rng(1), n, 0.03, 6):
        said = " ".join(x.warnings)
        assert ("too few for an interval" in said) == (n < 32) == math.isnan(x.ci_low)
        assert ("from below only: a few prompts" in said) == (32 <= n < 128)
        assert (LIGHT_TAILS in said) == (n >= 128)
        if n < 128:
            assert not math.isfinite(x.ci_high)


def test_an_entropy_has_no_sign_to_be_uncertain_of():
    x = torch.from_numpy(np.exp(3 * np.random.default_rng(1).normal(size=128)))
    found = [noise_over_square(x, 100.0, 0.95, positive=known) for known in (True, False)]
    assert all(math.isinf(of.ci_high) for of in found)
    assert ["sign" in "".join(of.warnings) for of in found] == [False, True]
    assert "spread over these 128 prompts is not known well enough" in "".join(found[0].warnings)


def test_a_noise_scale_that_chance_made_negative_has_no_value_and_says_why():
    rng = np.random.default_rng(3)
    g = rng.normal(size=(8, 40))
    g -= g.mean(0)
    found = noise_scale_of_gram(torch.from_numpy(g @ g.T)).b_simple
    x = torch.from_numpy(rng.normal(size=8))
    other = noise_over_square(x - x.mean(), 1.0, 0.95)
    for of in (found, other):
        assert not math.isfinite(of.value)
        assert "below zero" in "".join(of.warnings)


@pytest.mark.parametrize("n", [12, 64, 148, 149])
def test_few_prompts_say_how_often_a_mode_is_in_none_of_them(n):
    rng = np.random.default_rng(n)
    missed = np.mean(rng.binomial(n, MODE, size=20_000) == 0)
    said = " ".join(too_few_for_modes(n))
    assert bool(said) == (n < MIN_UNITS_FOR_MODES) == (missed > 0.0495 or n == 148)
    if said:
        stated = float(re.search(r"from (\d+) % of such batches", said)[1]) / 100
        assert stated == pytest.approx(missed, abs=0.015)


def test_of_four_values_all_but_the_smallest_square_make_the_tail():
    x = torch.tensor([-2.0, -1.0, 1.0, 2.0])
    index = (2 * math.log(4) + math.log(1)) / 3  # of the squares 4, 4 and 1 over the other 1
    assert tail_degrees_of_freedom(x) == pytest.approx(2 / index)
