"""The filter against the exact conditional of a Gaussian walk, and against an enumerated policy."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch

from isentrope import Policy, score
from isentrope.control.gradients import ControlSample
from isentrope.control.kalman_filter import KalmanFilter
from isentrope.oracle import TabularPolicy, enumerate_policy


def conditional(values, noises, variances):
    """Mean and variance of the last h given all observations; a flat prior on the first h."""
    walk = np.concatenate([[0.0], np.cumsum(variances)])
    prior = 1e6  # in place of a flat one
    covariance = prior + np.minimum.outer(walk, walk)
    seen = covariance + np.diag(noises)
    weights = np.linalg.solve(seen, covariance[:, -1])
    mean = values[0] + weights @ (np.asarray(values) - values[0])
    return mean, covariance[-1, -1] - weights @ covariance[:, -1]


def test_it_is_the_exact_conditional_of_measurements_with_the_mean_of_their_variances():
    rng = np.random.default_rng(0)
    n = 24
    values, said = rng.normal(3.0, 1.0, n), rng.uniform(0.1, 2.0, n)
    variances = rng.uniform(0.0, 0.5, n - 1)
    noises, mean = [], 0.0
    for t in range(n):
        mean += (said[t] - mean) / min(t + 1, 16)
        noises.append(mean)
    level = KalmanFilter()
    for t in range(n):
        level.observe(values[t], said[t], 1.0)
        mean, variance = conditional(values[: t + 1], noises[: t + 1], variances[:t])
        assert level.value == pytest.approx(mean, abs=1e-5)
        assert level.variance == pytest.approx(variance, rel=1e-4)
        if t < n - 1:
            level.variance += variances[t]


def test_what_it_knows_scales_with_the_entropy():
    large, small = KalmanFilter(), KalmanFilter()
    for t, value in enumerate([1.0, 1.3, 0.2, 0.15, 0.1]):
        for level, unit in ((large, 1.0), (small, 1e-3)):
            level.observe(unit * value, (0.2 * unit * value * (1 + t % 2)) ** 2)
            level.variance += (0.05 * unit * value) ** 2
    assert small.value == pytest.approx(1e-3 * large.value)
    assert small.variance == pytest.approx(1e-6 * large.variance)
    assert small.noise == pytest.approx(large.noise)


@cache
def with_a_rare_mode():
    """A policy of which 2 responses in 100 are long and random, and the rest end at once."""
    table = TabularPolicy(4, 5, memory=1)
    rows = [[0.98, 0.002, 0.01, 0.008], [0.05, 0.25, 0.35, 0.35]]
    with torch.no_grad():  # tokens 1 and 0 lead to the first row, 2 and 3 to the second
        table.table.copy_(torch.tensor([rows[0], *(rows[k] for k in (0, 0, 1, 1))]).log())
    policy = Policy(table, eos_token_id=0)
    exact = enumerate_policy(policy, [[1]], max_new_tokens=5)
    entropies = score(policy, exact.rollouts).entropies
    lengths = exact.rollouts.lengths.tolist()
    rows = [row[:t] for row, t in zip(entropies, lengths, strict=True)]
    return exact, exact.rollouts.with_columns(sampler_entropies=rows)


@pytest.mark.parametrize("per", [pytest.param("sequence", marks=pytest.mark.slow), "token"])
def test_it_is_not_too_low_where_entropy_is_in_rare_responses(per):
    """Each weighted by its own variance, measurements would give .82 and .86 of the truth."""
    exact, rollouts = with_a_rare_mode()
    truth, chances = exact.entropy(per), exact.probabilities()
    ratios, measured = [], []
    for run in range(8):
        level = KalmanFilter()
        for t in range(40):
            rows = exact.draw(128, 40 * run + t, chances)
            E = rollouts.select(rows).with_columns(prompt_index=torch.arange(128))
            value, error = ControlSample(E, f"per_{per}").entropy()
            level.observe(value, error**2)
            measured.append(value / truth)
            if t >= 10:
                ratios.append(level.value / truth)
            level.variance += (0.1 * level.value) ** 2
    assert np.std(measured) > 0.15
    assert np.mean(ratios) == pytest.approx(np.mean(measured), abs=0.03)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.05)


def test_its_state_is_json_also_before_anything_was_seen():
    for seen in (False, True):
        level, again = KalmanFilter(), KalmanFilter()
        if seen:
            level.observe(2.0, 0.5)
            level.observe(3.0, 0.1)
        again.load_state_dict(json.loads(json.dumps(level.state_dict())))
        for x in (level, again):
            x.observe(1.0, 0.2)
        assert vars(again) == vars(level)


def test_an_entropy_of_zero_is_a_level():
    level = KalmanFilter()
    for _ in range(3):
        level.observe(0.0, 0.0)
    assert level.value == 0.0
    assert math.isfinite(level.variance)
