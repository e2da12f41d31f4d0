from dataclasses import replace
from math import nan

import numpy as np

from isentrope.estimate import Estimate
from isentrope.reports.compare import difference
from isentrope.reports.sentences import with_interval
from tests.reports import made_up


def estimate(*args, **more):
    content = made_up.estimate(*args, **more)
    return Estimate(**{k: nan if v is None else v for k, v in content.items()})


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
    assert difference(known, replace(known, se=nan)) is None
    assert difference(known, replace(known, n=0)) is None


def test_an_interval_without_an_end_says_so():
    half = Estimate(2.0, 1.0, 1.0, nan, 8, "", "")
    assert with_interval(half) == "2 [1,\u00a0∞)"
