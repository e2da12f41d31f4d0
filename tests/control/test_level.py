"""The filter against the exact conditional of a Gaussian walk, in numpy."""

import json
import math

import numpy as np
import pytest

from isentrope.control.feedback import Level


def conditional(values, noises, changes, variances):
    """Mean and variance of the last h given all observations; a flat prior on the first h."""
    n = len(values)
    drift = np.concatenate([[0.0], np.cumsum(changes)])  # E[h_t] − E[h_1]
    walk = np.concatenate([[0.0], np.cumsum(variances)])
    prior = 1e6  # in place of a flat one
    covariance = prior + np.minimum.outer(walk, walk)
    seen = covariance + np.diag(noises)
    weights = np.linalg.solve(seen, covariance[:, -1])
    mean = drift[-1] + values[0] + weights @ (np.asarray(values) - drift - values[0])
    return mean, covariance[-1, -1] - weights @ covariance[:, -1], n


def test_it_is_the_exact_conditional_mean_and_variance():
    rng = np.random.default_rng(0)
    n = 12
    values, noises = rng.normal(size=n), rng.uniform(0.1, 2.0, n)
    changes, variances = rng.normal(size=n - 1), rng.uniform(0.0, 0.5, n - 1)
    level = Level()
    for t in range(n):
        level.observe(values[t], noises[t])
        mean, variance, _ = conditional(
            values[: t + 1], noises[: t + 1], changes[:t], variances[:t]
        )
        assert level.value == pytest.approx(mean, abs=1e-5)
        assert level.variance == pytest.approx(variance, rel=1e-4)
        if t < n - 1:
            level.predict(changes[t], variances[t])


def test_with_exact_predictions_it_is_the_weighted_mean_of_all_that_was_seen():
    values, noises = np.array([1.0, 4.0, 2.0]), np.array([1.0, 2.0, 0.5])
    level = Level()
    for value, noise in zip(values, noises, strict=True):
        level.observe(value, noise)
        level.predict(0.0, 0.0)
    assert level.value == pytest.approx(np.average(values, weights=1 / noises))
    assert level.variance == pytest.approx(1 / (1 / noises).sum())


def test_its_state_is_json_also_before_anything_was_seen():
    for seen in (False, True):
        level, again = Level(), Level()
        if seen:
            level.observe(2.0, 0.5)
        again.load_state_dict(json.loads(json.dumps(level.state_dict())))
        assert again.variance == level.variance
        assert again.value == level.value or math.isnan(level.value)
