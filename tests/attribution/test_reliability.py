"""What is printed beside a table of influences, against the truth that a simulation knows."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from isentrope.attribution.influence.reliability import (
    LISTED,
    listed_share,
    of_whole,
    rank_correlation,
    split_half,
)


def table(noise, groups=8, m=400, seed=0):
    """(truth, by_group): long-tailed influences, each with its own error of size `noise`."""
    rng = np.random.default_rng(seed)
    truth = rng.laplace(size=m)
    return truth, torch.from_numpy(truth / groups + noise * rng.normal(size=(groups, m)))


def test_halves_that_agree_correlate_and_halves_of_noise_do_not():
    truth, exact = table(0.0)
    assert split_half(exact) == pytest.approx(1)
    _, noise = table(10.0)
    assert abs(split_half(noise)) < 0.15
    assert rank_correlation(exact, 512).value == pytest.approx(1)
    assert rank_correlation(-noise, 512).value < 0.5
    assert truth.shape == (400,)


@pytest.mark.parametrize("groups", [7, 8, 32])
@pytest.mark.parametrize("noise", [pytest.param(0.1, marks=pytest.mark.slow), 0.5])
def test_the_rank_correlation_with_the_truth_is_the_printed_one(noise, groups):
    printed, true = [], []
    for seed in range(30):
        truth, by_group = table(noise / groups**0.5, groups, seed=seed)
        printed.append(rank_correlation(by_group, 512).value)
        true.append(spearmanr(by_group.sum(0).numpy(), truth).statistic)
    assert np.mean(printed) == pytest.approx(np.mean(true), abs=0.02)


@pytest.mark.parametrize("noise", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_listed_sizes_are_inflated_and_shrunk_ones_right_on_average(noise):
    raw = shrunk = true = 0.0
    for seed in range(60):
        truth, by_group = table(noise / 8**0.5, seed=seed)
        found = by_group.sum(0).numpy()
        order = np.argsort(found)
        listed = np.concatenate((order[: LISTED[0]], order[-LISTED[1] :]))
        raw += np.abs(found[listed]).sum()
        shrunk += listed_share(by_group) * np.abs(found[listed]).sum()
        true += (np.sign(found[listed]) * truth[listed]).sum()
    assert raw / true > 1.04
    assert shrunk / true == pytest.approx(1.0, abs=0.03)


def test_what_cannot_be_said_is_nan_and_a_small_batch_is_warned_of():
    _, by_group = table(0.5)
    assert np.isnan(rank_correlation(by_group[:1], 512).value)
    assert np.isnan(listed_share(by_group[:1]))
    assert "With 32 prompts in E" in rank_correlation(by_group, 32).warnings[0]
    assert not rank_correlation(by_group, 128).warnings
    _, opposed = table(0.0, groups=2)
    assert rank_correlation(opposed * torch.tensor([[1.0], [-1.0]]), 512).value == 0


def test_the_interval_holds_the_correlation_of_the_batch_that_it_is_printed_for():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(40):
        truth = rng.laplace(size=100)
        directions = rng.normal(size=(10, 100))  # errors of few dimensions, as those of a gradient
        units = truth / 64 + 0.6 / 8 * rng.normal(size=(64, 10)) @ directions / 10**0.5
        by_group = torch.from_numpy(units.reshape(8, 8, 100).sum(1))
        held += rank_correlation(by_group, 64).covers(spearmanr(units.sum(0), truth).statistic)
    assert held >= 34
    assert np.isnan(rank_correlation(by_group[:2], 64).ci_low)


def test_the_correlation_of_halves_is_brought_to_the_size_of_the_whole():
    assert of_whole(0.5, 3) == pytest.approx(0.75)  # a third of the groups in each half
