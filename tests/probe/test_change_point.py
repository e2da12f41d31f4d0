"""The change-point test, against least squares and against simulated runs without a change."""

import numpy as np
import pytest
from scipy import stats

from isentrope.probe.change_point import MIN_SIDE, WINDOW, find_change_point


def by_least_squares(x, se):
    """max over splits of |t| of a step in the mean, by regressing on a step with lstsq."""
    x, se, n, found = np.asarray(x), np.asarray(se), len(x), []
    for k in range(max(MIN_SIDE, n - WINDOW), n - MIN_SIDE + 1):
        design = np.stack([np.ones(n), np.arange(n) >= k], 1) / se[:, None]
        beta, residual, *_ = np.linalg.lstsq(design, x / se, rcond=None)
        scale = float(residual[0]) / (n - 2)
        error = np.sqrt(scale * np.linalg.inv(design.T @ design)[1, 1])
        found.append((abs(beta[1]) / error, k))
    return max(found)


@pytest.mark.parametrize("n", [5, 12, 60])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_the_split_is_that_of_least_squares(n, spread):
    rng = np.random.default_rng(n)
    se = rng.lognormal(0, 0.5, n)
    x = 0.7 + spread * se * rng.normal(size=n) + np.where(np.arange(n) > 0.6 * n, 2.0, 0.0)
    found = find_change_point(x, se, 0.05)
    assert found[0] == by_least_squares(x, se)[1]


def test_the_p_value_is_the_share_of_simulated_runs_with_as_large_a_statistic():
    rng = np.random.default_rng(7)
    se = rng.lognormal(0, 0.5, 12)
    x = se * rng.normal(size=12) + np.where(np.arange(12) >= 7, 2.3, 0.0)
    largest = by_least_squares(x, se)[0]
    null = [by_least_squares(se * rng.normal(size=12), se)[0] for _ in range(600)]
    expected = np.mean(np.array(null) >= largest)
    assert 0.005 < expected < 0.2
    error = np.sqrt(expected * (1 - expected) / len(null))
    assert abs(find_change_point(x, se, 0.2)[1] - expected) < 4 * error


def test_four_readings_are_too_few():
    assert find_change_point([1.0, 2, 9, 9], [1.0] * 4, 0.05) is None


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_false_alarms_are_as_frequent_as_stated_whatever_the_errors_leave_out(scale):
    """The errors tell more, all or a ninth of the variance of the readings."""
    rng, level = np.random.default_rng(1), 0.05
    found = []
    for k in range(300):
        n = 5 + k % 40
        se = rng.lognormal(0, 0.4, n)
        x = -0.3 + scale * se * rng.normal(size=n)
        found.append(find_change_point(x, se, level)[1] <= level)
    low, high = stats.binom.interval(0.999, len(found), level)
    assert low <= sum(found) <= high


def test_a_change_is_found_within_a_few_readings_at_the_place_where_it_is():
    rng, delays, places = np.random.default_rng(2), [], []
    for _ in range(40):
        x = np.concatenate([rng.normal(0, 1, 20), rng.normal(-3, 1, 20)])
        for n in range(5, 41):
            found = find_change_point(x[:n], np.ones(n), 0.0025)
            if found[1] <= 0.0025:
                break
        delays.append(n - 20)
        places.append(found[0])
    assert 2 <= np.median(delays) <= 6
    assert np.median(places) == 20
