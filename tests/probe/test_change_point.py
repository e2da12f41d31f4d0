"""The change-point test, against least squares and against simulated runs without a change."""

import numpy as np
import pytest
from scipy import stats

from isentrope.probe.change_point import MIN_SIDE, WINDOW, find_change_point, mean_of


def by_least_squares(x, se):
    """max over splits of |t| of a step in the mean, by regressing on a step with lstsq."""
    x, se, n, found = np.asarray(x), np.asarray(se), len(x), []
    for k in range(max(MIN_SIDE, n - WINDOW), n - MIN_SIDE + 1):
        design = np.stack([np.ones(n), np.arange(n) >= k], 1) / se[:, None]
        beta, residual, *_ = np.linalg.lstsq(design, x / se, rcond=None)
        scale = float(residual[0]) / (n - 2)
        error = np.sqrt(scale * np.linalg.inv(design.T @ design)[1, 1])
        found.append((abs(beta[1]) / error, k, beta[0], beta[0] + beta[1]))
    return max(found)


@pytest.mark.parametrize("n", [5, 12, 60])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_the_split_is_that_of_least_squares(n, spread):
    rng = np.random.default_rng(n)
    se = rng.lognormal(0, 0.5, n)
    x = 0.7 + spread * se * rng.normal(size=n) + np.where(np.arange(n) > 0.6 * n, 2.0, 0.0)
    found = find_change_point(x, se, 0.05)
    _, place, before, after = by_least_squares(x, se)
    assert found.place == place
    assert (found.before.value, found.after.value) == pytest.approx((before, after))


def test_the_p_value_is_the_share_of_simulated_runs_with_as_large_a_statistic():
    rng = np.random.default_rng(7)
    se = rng.lognormal(0, 0.5, 12)
    x = se * rng.normal(size=12) + np.where(np.arange(12) >= 7, 2.3, 0.0)
    largest = by_least_squares(x, se)[0]
    null = [by_least_squares(se * rng.normal(size=12), se)[0] for _ in range(600)]
    expected = np.mean(np.array(null) >= largest)
    assert 0.005 < expected < 0.2
    error = np.sqrt(expected * (1 - expected) / len(null))
    assert abs(find_change_point(x, se, 0.2).p_value - expected) < 4 * error


def test_four_readings_are_too_few_and_readings_without_error_are_refused():
    assert find_change_point([1.0, 2, 9, 9], [1.0] * 4, 0.05) is None
    for values, errors in (([1.0], [0.0]), ([np.nan], [1.0]), ([], []), ([1.0, 2.0], [1.0])):
        with pytest.raises(ValueError, match="positive standard error"):
            mean_of(values, errors)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_false_alarms_are_as_frequent_as_stated_whatever_the_errors_leave_out(scale):
    """The errors tell more, all or a ninth of the variance of the readings."""
    rng, level = np.random.default_rng(1), 0.05
    found = []
    for k in range(300):
        n = 5 + k % 40
        se = rng.lognormal(0, 0.4, n)
        x = -0.3 + scale * se * rng.normal(size=n)
        found.append(find_change_point(x, se, level).p_value <= level)
    low, high = stats.binom.interval(0.999, len(found), level)
    assert low <= sum(found) <= high


def test_a_change_is_found_within_a_few_readings_at_the_place_where_it_is():
    rng, delays, places = np.random.default_rng(2), [], []
    for _ in range(40):
        x = np.concatenate([rng.normal(0, 1, 20), rng.normal(-3, 1, 20)])
        for n in range(5, 41):
            found = find_change_point(x[:n], np.ones(n), 0.0025)
            if found.p_value <= 0.0025:
                break
        delays.append(n - 20)
        places.append(found.place)
    assert 2 <= np.median(delays) <= 6
    assert np.median(places) == 20


@pytest.mark.parametrize("spread", [1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_the_interval_of_the_mean_covers_whether_or_not_the_errors_tell_all(spread):
    rng, covered = np.random.default_rng(3), []
    for _ in range(2000):
        se = rng.lognormal(0, 0.4, 8)
        found = mean_of(0.5 + spread * se * rng.normal(size=8), se)
        low, high = found.interval(0.95)
        covered.append(low <= 0.5 <= high)
    assert np.mean(covered) >= 0.94  # wider than nominal where the scale is known to be 1
