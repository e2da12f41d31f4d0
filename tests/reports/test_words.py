import numpy as np
import pytest

from isentrope.reports.compare import difference
from isentrope.reports.words import listed, number, percent, power_of_ten, with_interval
from tests.reports.made_up import estimate


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1.78e-3, "−0.00178"),
        (1e-7, "1·10⁻⁷"),
        (-2.5e-6, "−2.5·10⁻⁶"),
        (123456.0, "1.23·10⁵"),
        (12345.0, "12300"),
        (0.0, "0"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
    ],
)
def test_numbers_are_short_and_their_minus_is_a_minus(value, said):
    assert number(value) == said


def test_ticks_are_powers_of_ten_and_nothing_between():
    assert [power_of_ten(v) for v in (1e-3, -1e-4, 1.0, 100.0, 0.0, 0.2)] == [
        "10⁻³",
        "−10⁻⁴",
        "1",
        "100",
        "0",
        "",
    ]


def test_no_interval_is_said_and_not_left_out():
    assert with_interval(estimate(2.0, 0.1)) == "2 [1.8,\u00a02.2]"
    assert "no interval" in with_interval(estimate(2.0, 0.1, interval=False))
    assert with_interval(None) == "–"


def test_shares_and_lists():
    assert [percent(x) for x in (0.6, 0.014, -0.5)] == ["60\u00a0%", "1.4\u00a0%", "−50\u00a0%"]
    assert listed(["a", "b", "c"]) == "a, b and c"


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
