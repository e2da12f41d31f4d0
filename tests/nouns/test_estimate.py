import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from isentrope import Estimate
from isentrope.nouns.estimate import BOUNDS, NO_SPREAD
from isentrope.nouns.freedom import freedom_of_groups, held_by_few, t_quantile


def estimate(n=11, **options):
    return Estimate.from_standard_error(2.0, 0.5, n, unit="nats", method="prefix", **options)


def test_interval_is_a_t_interval_on_the_number_of_units():
    half = t.ppf(0.975, 10) * 0.5
    assert (estimate().ci_low, estimate().ci_high) == pytest.approx((2 - half, 2 + half))
    wider = estimate(confidence=0.99)
    assert wider.ci_low < estimate().ci_low


def test_its_degrees_of_freedom_may_be_those_of_groups():
    grouped = estimate(n=512, degrees_of_freedom=7)
    half = t_quantile(7) * 0.5
    assert t_quantile(7) == pytest.approx(2.365, abs=1e-3)
    assert (grouped.ci_low, grouped.ci_high) == pytest.approx((2 - half, 2 + half))
    assert (grouped.n, grouped.to_dict()["degrees_of_freedom"]) == (512, 7)
    assert estimate().degrees_of_freedom == 10


def test_on_the_log_scale_the_interval_stays_above_zero():
    wide = Estimate.from_standard_error(1.0, 0.9, 8, unit="nats", method="x").on_log_scale()
    assert 0 < wide.ci_low < 1 < wide.ci_high
    assert wide.ci_low * wide.ci_high == pytest.approx(1.0)
    assert math.isnan(estimate(trusted=False).on_log_scale().ci_low)
    lost = Estimate.from_standard_error(1.0, 100.0, 2, unit="nats", method="x").on_log_scale()
    assert lost.ci_low < 1e-300
    assert lost.ci_high > 1e300


@pytest.mark.parametrize("options", [{"trusted": False}, {"n": 1}])
def test_an_interval_that_cannot_be_trusted_is_nan(options):
    assert math.isnan(estimate(**options).ci_low)
    assert not estimate(**options).covers(2.0)
    assert "[-]" in str(estimate(**options))


def test_it_covers_what_lies_between_its_ends():
    assert estimate().covers(2.9)
    assert not estimate().covers(3.5)


def test_it_is_ready_for_json_and_for_reading():
    assert json.loads(json.dumps(estimate(warnings=("careful",)).to_dict()))["unit"] == "nats"
    assert str(estimate()).startswith("2.00 ± 0.50 [")


@pytest.mark.parametrize("unit", BOUNDS)
def test_an_interval_never_leaves_the_values_that_its_quantity_can_have(unit):
    low, high = BOUNDS[unit]
    wide = Estimate.from_standard_error(low + 0.4, 3.0, 5, unit=unit, method="")
    assert wide.ci_low == low
    assert wide.ci_high <= high
    near = replace(wide, ci_low=low + 0.3, ci_high=math.inf)
    assert (near.ci_low, near.ci_high) == (low + 0.3, high)
    withheld = Estimate.from_standard_error(0.4, 3.0, 5, unit=unit, method="", trusted=False)
    assert math.isnan(withheld.ci_low)
    assert math.isnan(withheld.ci_high)


@pytest.mark.parametrize("unit", BOUNDS)
def test_no_bound_of_a_unit_puts_a_value_outside_of_its_interval(unit):
    low, high = BOUNDS[unit]
    for value in filter(math.isfinite, (low - 0.1, high + 0.1)):
        found = Estimate.from_standard_error(value, 0.01, 50, unit=unit, method="")
        assert found.covers(value)


def carried(values):
    """The mean of numbers, from its influences."""
    x = np.asarray(values, dtype=float)
    return Estimate.from_influences(x.mean(), (x - x.mean()) / len(x), unit="nats", method="mean")


def test_degrees_of_freedom_are_the_participation_of_the_influences_less_one():
    x = np.random.default_rng(0).normal(size=200)
    squares = (x - x.mean()) ** 2
    found = carried(x)
    assert found.se == pytest.approx(x.std(ddof=1) / 200**0.5)
    assert found.degrees_of_freedom == pytest.approx(
        sum(squares) ** 2 / sum(s * s for s in squares) - 1
    )
    assert found.ci_high - found.value == pytest.approx(
        t.ppf(0.975, found.degrees_of_freedom) * found.se
    )


def test_influences_of_one_independent_unit_have_no_interval():
    one = Estimate.from_influences(1.0, [0.5, -0.5], at_most=1, unit="nats", method="mean")
    assert math.isnan(one.ci_low)
    assert one.degrees_of_freedom == 0


def test_intervals_cover_where_a_rare_mode_carries_the_mean():
    """4.5 % of the values are large; n − 1 degrees of freedom cover .84 of such means."""
    rng = np.random.default_rng(1)
    rare = (rng.random((1500, 256)) < 0.045) * np.exp(rng.normal(size=(1500, 256)))
    truth = 0.045 * np.exp(0.5)
    assert np.mean([carried(x).covers(truth) for x in rare]) >= 0.92
    spread = rare.std(1, ddof=1) / 16
    assert np.mean(abs(rare.mean(1) - truth) <= t.ppf(0.975, 255) * spread) < 0.87


def test_an_even_number_has_almost_the_interval_of_n_minus_one_degrees_of_freedom():
    found = [carried(x) for x in np.random.default_rng(2).normal(size=(200, 256))]
    widths = [(x.ci_high - x.ci_low) / (2 * x.se * t.ppf(0.975, 255)) for x in found]
    assert 1 < np.mean(widths) < 1.03
    assert not any(x.warnings for x in found)


def test_a_handful_that_carries_a_number_is_named_with_its_participation():
    found = carried([*np.random.default_rng(3).normal(size=250) * 0.01, 5.0, 4.0, 6.0])
    assert (
        "A handful of responses hold most of this number, as 3 of equal weight would"
        in found.warnings[0]
    )


@pytest.mark.parametrize("values", [[3.0] * 20, [0.0] * 20, [0.1 + 0.2, 0.3] * 10])
def test_what_is_equal_in_every_unit_has_no_interval_and_says_so(values):
    found = carried(values)
    assert math.isnan(found.ci_low)
    assert found.warnings == (NO_SPREAD,)


def test_uneven_groups_have_fewer_degrees_of_freedom_and_normal_ones_as_many_as_groups():
    rng = np.random.default_rng(4)
    groups = rng.normal(size=(2000, 8))
    found = [freedom_of_groups(x - x.mean()) for x in groups]
    assert 6 < np.median(found) <= 7
    assert freedom_of_groups(np.array([7.0, -1, -1, -1, -1, -1, -1, -1])) == 1
    assert freedom_of_groups(np.array([1.0, -1.0])) == 1


@pytest.mark.parametrize("carriers", [1.0, 1.4, 1.6, 3.2, 12.0])
@pytest.mark.parametrize("n", [None, 40])
def test_who_holds_a_sum_is_a_sentence_for_one_and_for_several(carriers, n):
    found = held_by_few("the noise", carriers, "prompts", n)
    alone = carriers < 1.5
    of_all = "prompt" if n is None and alone else "prompts" if n is None else "the 40 prompts"
    assert f"{of_all} holds most of the noise" in found if alone else f"{of_all} hold most" in found
    assert found.startswith("One ") == alone
    assert not re.search(r"\b1(\.0)?\b|ones", found)
