"""The benchmarks run, at a size that measures nothing."""

import torch

from benchmarks import cost, coverage, variance
from isentrope.policy.scoring import score_with_features
from tests import cases


def test_cost_gives_a_row_a_quantity():
    rows = cost.time_rows("toy", "float64", n=4, repetitions=2, device="cpu")
    assert len(rows) == 6
    assert all("±" in row for row in rows)


def test_plain_scores_of_the_floor_are_the_scores_of_the_library():
    subject = cost.Subject("toy", "float64", 4, "cpu")
    (batch,) = subject.batches
    for plain, ours in zip(
        subject.plain_scores(batch), subject.policy.packed_scores(batch), strict=True
    ):
        torch.testing.assert_close(plain, ours, atol=1e-4, rtol=0)


def test_coverage_study_names_every_estimator():
    rows = coverage.study("table", "per_token", batches=3, n=64)
    assert {row.method for row in rows} == set(coverage.METHODS)
    assert "| table | per_token |" in coverage.table(rows)


def test_variance_compares_the_same_batches():
    exact = cases.exact("table")
    pool = score_with_features(exact.policy, exact.sample(96, 0))
    for method in cases.METHODS:
        table = variance.estimates((pool, [pool]), [0.0], 32, "per_token", method)
        torch.testing.assert_close(table, torch.zeros(3, 1).double(), atol=1e-12, rtol=0)
    assert variance.variance_ratio(torch.arange(9.0).double(), torch.arange(9.0).double())[0] == 1
