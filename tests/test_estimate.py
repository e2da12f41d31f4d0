import json
import math
from dataclasses import replace

import pytest
from scipy.stats import t

from isentrope.estimate import BOUNDS, Estimate, t_quantile


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


@pytest.mark.parametrize("options", [{"trusted": False}, {"n": 1}])
def test_an_interval_that_cannot_be_trusted_is_nan(options):
    assert math.isnan(estimate(**options).ci_low)
    assert not estimate(**options).covers(2.0)
    assert "[-]" in str(estimate(**options))


def test_it_covers_what_lies_between_its_ends():
    assert estimate().covers(2.9)
    assert not estimate().covers(3.5)


def test_it_is_ready_for_json_and_for_reading():
    assert json.loads(json.dumps(estimate(warnings=["careful"]).to_dict()))["unit"] == "nats"
    assert str(estimate()).startswith("2 ± 0.5 [")


@pytest.mark.parametrize("unit", BOUNDS)
def test_an_interval_never_leaves_the_values_that_its_quantity_can_have(unit):
    low, high = BOUNDS[unit]
    wide = Estimate.from_standard_error(0.4, 3.0, 5, unit=unit, method="")
    assert (wide.ci_low, wide.ci_high) == (low, high)
    near = replace(wide, ci_low=0.3, ci_high=math.inf)
    assert (near.ci_low, near.ci_high) == (0.3, high)
    withheld = Estimate.from_standard_error(0.4, 3.0, 5, unit=unit, method="", trusted=False)
    assert math.isnan(withheld.ci_low)
    assert math.isnan(withheld.ci_high)
