import numpy as np

from isentrope.reports.compare import difference
from isentrope.reports.sentences import with_interval
from tests.reports.made_up import estimate


def test_no_interval_is_said_and_not_left_out():
    assert with_interval(estimate(2.0, 0.1)) == "2 [1.8,\u00a02.2]"
    assert "no interval" in with_interval(estimate(2.0, 0.1, interval=False))
    assert with_interval(None) == "–"


def test_the_difference_of_two_runs_covers_the_truth():
    draw, covered, trials, n = np.random.default_rng(0), 0, 2000, 10
    for _ in range(trials):
        one, two = draw.normal(size=n), draw.normal(size=n, scale=3)
        both = [estimate(x.mean(), x.std(ddof=1) / np.sqrt(n), n) for x in (one, two)]
        covered += difference(*both).covers(0.0)
    assert 0.93 < covered / trials < 0.97


def test_an_error_that_is_not_known_leaves_no_difference():
    known = estimate(1.0, 0.1)
    assert difference(known, estimate(1.0, 0.1, interval=False)) is None
    assert difference(known, known | {"se": None}) is None
    assert difference(known, known | {"n": None}) is None


def test_an_interval_without_an_end_says_so():
    half = {"value": 2.0, "se": 1.0, "ci_low": 1.0, "ci_high": None}
    assert with_interval(half) == "2 [1,\u00a0∞)"
