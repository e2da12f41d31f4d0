import math

import pytest
import torch
from scipy.stats import t as student_t

from isentrope import Estimate
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.ratio import fieller, interval_of_ratio, ratio_of

N = 24


def means(top, bottom, seed):
    """Two correlated sample means, with errors of one tenth and of 1, jackknifed."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, N, generator=generator, dtype=torch.float64) * N**0.5
    x, y = top + 0.1 * x, bottom + 0.6 * x + 0.8 * y

    def statistics(omega):
        a, b = omega @ x / omega.sum(), omega @ y / omega.sum()
        return torch.stack([a, b])

    return infinitesimal_jackknife(statistics, torch.arange(N))


def intervals(result):
    """|a/b| with its t-interval, and with Fieller's."""
    ours = ratio_of(result, 0, 1, name="b", unit="η", method="prefix", confidence=0.95)
    plain = Estimate.from_standard_error(ours.value, ours.se, N, unit="η", method="prefix")
    return plain, ours


@pytest.mark.parametrize(
    "bottom", [1.0, *(pytest.param(b, marks=pytest.mark.slow) for b in (5.0, 2.0, 0.5))]
)
def test_fiellers_interval_covers_a_ratio_whose_denominator_may_be_zero(bottom):
    covered = torch.tensor(
        [[x.covers(1 / bottom) for x in intervals(means(1.0, bottom, s))] for s in range(1000)]
    )
    plain, ours = covered.double().mean(0).tolist()
    assert ours > 0.93  # a ratio of the other sign counts as well
    if bottom in (2.0, 1.0):
        assert plain < ours - 0.02


def test_the_ends_are_where_top_less_x_bottom_is_just_distinguishable_from_zero():
    result = means(1.0, 5.0, 0)
    _, found = intervals(result)
    a, b = result.influences
    squares = (a - float(result.values[0] / result.values[1]) * b).square()
    T = float(student_t.ppf(0.975, squares.sum() ** 2 / squares.square().sum() - 1))
    for x in (found.ci_low, found.ci_high):
        contrast = torch.tensor([1.0, -x], dtype=torch.float64)
        error = float(contrast @ result.covariance @ contrast) ** 0.5
        assert abs(float(contrast @ result.values)) == pytest.approx(T * error)


def test_a_denominator_that_may_be_zero_leaves_no_upper_end_and_says_so():
    plain, found = intervals(means(1.0, 0.3, 0))
    assert math.isfinite(plain.ci_high)
    assert 0 < found.ci_low < found.value
    assert found.ci_high == math.inf
    assert "b is not distinguishable from zero" in found.warnings[0]
    _, nothing_known = intervals(means(0.0, 0.3, 0))
    assert (nothing_known.ci_low, nothing_known.ci_high) == (0, math.inf)


def test_a_numerator_that_may_be_zero_puts_zero_into_the_interval():
    _, found = intervals(means(0.0, 8.0, 0))
    assert found.ci_low == 0 < found.value < found.ci_high < 1


def test_sign_and_scale_of_numerator_and_denominator_do_not_matter():
    covariance = torch.tensor([[0.01, 0.02], [0.02, 0.09]], dtype=torch.float64)
    low, high = fieller(1.0, 2.0, covariance, 2.0)
    assert fieller(-1.0, -2.0, covariance, 2.0) == pytest.approx((low, high))
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert fieller(-1.0, 2.0, covariance * signs, 2.0) == pytest.approx((-high, -low))
    tenth = torch.tensor([[1.0, 0.1], [0.1, 0.01]], dtype=torch.float64)
    assert fieller(1.0, 0.2, covariance * tenth, 2.0) == pytest.approx((10 * low, 10 * high))


def test_what_has_no_interval_gets_none():
    options = {"name": "b", "unit": "", "method": "", "confidence": 0.95}
    found = ratio_of(means(1.0, 5.0, 0), 0, 1, trusted=False, **options)
    assert math.isnan(found.ci_low)
    assert math.isnan(found.ci_high)


def test_where_nothing_is_known_of_both_every_ratio_is_possible():
    for variance in (1.0, 0.04):
        found = fieller(0.1, 0.1, variance * torch.eye(2), 2.0)
        assert found == (-math.inf, math.inf)


def test_a_share_has_an_interval_from_four_errors_on_which_shrinks_to_fiellers():
    covariance = torch.eye(2, dtype=torch.float64)
    near = interval_of_ratio(1.0, 3.9, covariance, 2.0, sign="any")
    assert all(map(math.isnan, near))
    widths = []
    for u in (4.1, 8.0, 50.0):
        low, high = interval_of_ratio(u, u, covariance, 2.0, sign="any")
        least, most = fieller(u, u, covariance, 2.0)
        widths.append((high - low) / (most - least))
    assert widths == sorted(widths, reverse=True)
    assert 1 < widths[-1] < 1.01


def test_a_share_without_an_interval_says_what_is_not_excluded():
    result = means(1.0, 0.3, 0)
    found = ratio_of(result, 0, 1, name="b", sign="any", unit="η", method="m", confidence=0.95)
    assert math.isnan(found.ci_low)
    assert "b is" in found.warnings[-1]
    assert "below" in found.warnings[-1]
    assert "above" in found.warnings[-1]
