"""What proves claims runs, at a size that proves little."""

import pytest
import torch

from isentrope.policy.scoring import score
from tests import cases
from validation import choices, coverage, identities, intervals, power, reliability, variance


def test_coverage_study_names_every_estimator():
    rows = coverage.study("table", "per_token", batches=3, n=64)
    assert {row.method for row in rows} == set(coverage.METHODS)
    assert "| table | per_token |" in coverage.table(rows)


def test_variance_compares_the_same_batches():
    exact = cases.exact("table")
    pool = score(exact.policy, exact.sample(96, 0), features=32)
    for method in cases.METHODS:
        table = variance.estimates((pool, [pool]), [0.0], 32, "per_token", method)
        torch.testing.assert_close(table, torch.zeros(3, 1).double(), atol=1e-12, rtol=0)
    assert variance.variance_ratio(torch.arange(9.0).double(), torch.arange(9.0).double())[0] == 1


def test_identities_have_light_tails_where_few_tokens_hold_the_entropy():
    z = identities.enumerated("sharp", 32, 20_000)
    beyond = (abs(z) > 4).mean(0)  # (identity, way)
    own, _, mixed = range(3)
    assert beyond[:, mixed].max() <= 5e-4
    assert beyond[0, own] > 5e-3  # what the sample's own variance would do
    assert 0.8 < z[..., mixed].std(0).min() < z[..., mixed].std(0).max() < 1.05


def test_power_is_high_for_a_gross_fault_and_small_without_one():
    found = power.simulate(power.FAULTS["EOS masked"], "flat", 64, 50)
    assert found["EOS"] == found["any"] == found["kept"] == 1
    assert power.simulate(power.FAULTS["top_p = 0.9"], "flat", 256, 50)["filters"] == 1
    assert power.simulate(power.FAULTS["none"], "flat", 64, 50)["any"] == 0


def test_intervals_of_every_kind_are_simulated():
    assert "| Gauss | 2 x 4 |" in intervals.online_noise(1)[0]
    assert len(intervals.entropy_law(1)) == 48


def test_statements_that_a_number_decides_are_simulated(monkeypatch):
    monkeypatch.setattr(choices, "ERRORS_OF_FIRST", (0.0, 4.0))
    monkeypatch.setattr(choices, "ERRORS_OF_SECOND", (-8.0,))
    by_rule, former = choices.tops(2)
    assert all(tally.share == 1 for tally in by_rule.values())
    assert any(tally.share < 1 for tally in former.values())
    assert all(tally.batches == 1 for tally in choices.alarms(1).values())


@pytest.mark.slow
def test_a_printed_reliability_is_held_against_the_exact_influence():
    case = reliability.Case("flat", "per_token")
    assert torch.allclose(
        torch.from_numpy(case.weight) @ case.added, case.truth, rtol=1e-6, atol=1e-9
    )
    found = reliability.row(case, 128, batches=3, groups=8)
    assert 0.9 < found["true"] < 1
