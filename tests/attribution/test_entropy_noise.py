"""The noise of the entropy step: how many prompts make its sign certain."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from isentrope import entropy_noise_scale
from isentrope.estimators.tail import tail_degrees_of_freedom


def contributions(rng, n, noise, mean=-1.0, group=4):
    """δH_i of n prompts of `group` responses: mean sum, and B = noise · n / mean²."""
    by_prompt = mean + (noise * n) ** 0.5 * rng.normal(size=n)
    parts = rng.normal(size=(n, group))
    parts += (by_prompt[:, None] - parts.sum(1, keepdims=True)) / group
    return torch.from_numpy(parts.flatten() / n), torch.arange(n).repeat_interleave(group)


def test_it_is_the_variance_over_prompts_by_the_unbiased_square():
    values, prompts = contributions(np.random.default_rng(0), 32, noise=0.1)
    found = entropy_noise_scale(values, prompts)
    x = 32 * values.reshape(32, 4).sum(1)
    assert found.gradient.value == pytest.approx(float(values.sum()), rel=1e-12)
    expected = float(x.var() / (x.mean() ** 2 - x.var() / 32))
    assert found.noise_scale.value == pytest.approx(expected, rel=1e-10)
    assert found.noise_scale.unit == "prompts"
    kappa = [float(y.mean() / y.std()) for y in (x, *(x[torch.arange(32) != i] for i in range(32)))]
    error = (31 / 32 * sum((k - np.mean(kappa[1:])) ** 2 for k in kappa[1:])) ** 0.5
    assert found.noise_scale.se == pytest.approx(2 * error / abs(kappa[0]) ** 3, rel=1e-9)


def test_the_batch_it_names_has_the_right_sign_as_often_as_it_says():
    """A population with B = 10: the sign of a batch of z² B prompts is right in 95 of 100."""
    rng = np.random.default_rng(1)
    found = entropy_noise_scale(*contributions(rng, 20_000, noise=10 / 20_000))
    size = round(found.prompts_for_gradient_sign.value)
    assert size == pytest.approx(norm.ppf(0.95) ** 2 * 10, rel=0.1)
    batches = -1 + 10**0.5 * rng.normal(size=(20_000, size))
    assert np.mean(batches.mean(1) < 0) == pytest.approx(0.95, abs=0.01)


def test_momentum_moves_the_sign_that_has_to_be_certain():
    values, prompts = contributions(np.random.default_rng(2), 4000, noise=10 / 4000)
    along, against = (entropy_noise_scale(values, prompts, b) for b in (-2.0, 2.0))
    alone = along.prompts_for_gradient_sign.value
    assert along.prompts_for_sign.value == pytest.approx(alone / 9, rel=0.1)  # |−2 − 1|² = 9
    assert against.prompts_for_sign.value == pytest.approx(alone, rel=0.2)  # |2 − 1|² = 1
    assert along.noise_scale == against.noise_scale


def skewed(rng, n):
    """x_p with mean 1 and a lognormal tail of standard deviation 1, so B = 1."""
    tail = (np.exp(rng.normal(size=n)) - np.e**0.5) / (np.e**2 - np.e) ** 0.5
    return torch.from_numpy((1 + tail) / n), torch.arange(n)


@pytest.mark.parametrize("n", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_intervals_cover_without_and_with_a_heavy_tail(n):
    """With n − 1 degrees of freedom the lognormal ones cover .73."""
    rng = np.random.default_rng(3)
    even = [entropy_noise_scale(*contributions(rng, n, 1 / n)).noise_scale for _ in range(150)]
    heavy = [entropy_noise_scale(*skewed(rng, n)).noise_scale for _ in range(200)]
    for found in (even, heavy):
        assert np.mean([x.covers(1.0) for x in found]) >= 0.9


def test_degrees_of_freedom_are_two_by_the_tail_index_of_the_squares():
    values = torch.from_numpy(np.random.default_rng(8).standard_t(3, size=40))
    squares = sorted(float((x - values.mean()) ** 2) for x in values)[::-1]
    tail = np.mean([np.log(x / squares[8]) for x in squares[:8]])  # Hill, the largest fifth
    assert tail_degrees_of_freedom(values) == pytest.approx(2 / tail, rel=1e-6)
    assert 1 < 2 / tail < 39


def test_below_32_prompts_there_is_no_interval():
    found = entropy_noise_scale(*contributions(np.random.default_rng(6), 31, 0.1)).prompts_for_sign
    assert np.isnan([found.ci_low, found.ci_high]).all()
    assert "31 prompts are too few" in found.warnings[0]


def test_an_uncertain_sign_has_no_upper_end_and_no_bound_is_passed_off_as_one():
    rng = np.random.default_rng(4)
    found = [entropy_noise_scale(*contributions(rng, 32, 50.0)).noise_scale for _ in range(100)]
    open_ = [x for x in found if np.isinf(x.ci_high)]
    assert len(open_) >= 88
    assert all("bounded from below" in "".join(x.warnings) and x.ci_low > 0 for x in open_)


def test_a_shift_far_from_zero_loses_no_digits():
    values, prompts = contributions(np.random.default_rng(5), 128, noise=0.05)
    near, far = (entropy_noise_scale(values, prompts, b).prompts_for_sign for b in (0.0, 1e6))
    x = 128 * values.reshape(128, 4).sum(1)
    expected = norm.ppf(0.95) ** 2 * float(x.var()) / (float(x.mean()) + 1e6) ** 2
    assert far.value == pytest.approx(expected, rel=1e-6)
    assert far.ci_low < far.value < far.ci_high < near.ci_low


def test_what_cannot_be_measured_is_refused_in_a_sentence():
    ones, index = torch.ones(6), torch.arange(6)
    with pytest.raises(ValueError, match="same influence"):
        entropy_noise_scale(ones, index)
    with pytest.raises(ValueError, match=r"prompts .* 3 "):
        entropy_noise_scale(torch.randn(6), index % 3)
    with pytest.raises(ValueError, match=r"shapes \(6,\) and \(5,\)"):
        entropy_noise_scale(ones, index[:5])
    with pytest.raises(ValueError, match="got 95"):
        entropy_noise_scale(torch.randn(6), index, confidence=95)
