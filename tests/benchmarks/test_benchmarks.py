"""The benchmarks run, at a size that measures nothing."""

import pytest
import torch

from benchmarks import (
    cost,
    coverage,
    identities,
    intervals,
    kernel,
    peers,
    power,
    reliability,
    variance,
)
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_with_features
from tests import cases


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def kernel_subject():
    return kernel.Subject(kernel.Case(32, 48, 2, (2, 1), rank=4, n_E=9, n_U=10))


@pytest.mark.slow
def test_kernel_rows_are_of_one_matrix(kernel_subject):
    rows = kernel.kernel_rows("tiny", kernel_subject, repetitions=2)
    differences = [row.split("|")[-2].strip() for row in rows]
    assert len(rows) == 6
    assert max(float(x) for x in differences if x) < 1e-5


def test_kernel_floor_has_the_summed_gradient_of_the_library(kernel_subject):
    s = kernel_subject
    sums = sum(s.logprob_sums(batch) for batch in (*s.batches["E"], *s.batches["U"]))
    plain = torch.autograd.grad(sums, list(s.parameters.values()))
    ours = [weighted_gradient(s.policy, *_summed(r)) for r in (s.E, s.U)]
    for name, gradient in zip(s.parameters, plain, strict=True):
        torch.testing.assert_close(
            gradient.double(), ours[0][name] + ours[1][name], atol=1e-3, rtol=1e-4
        )


def _summed(rollouts):
    of = score_sums(rollouts)
    return of.rollouts, of.logprob_weights


@pytest.mark.slow
def test_influence_and_memory_give_a_row_each(kernel_subject):
    assert len(kernel.influence_rows("tiny", kernel_subject, repetitions=2)) == 4
    (row,) = kernel.memory_rows("tiny", kernel_subject)
    assert float(row.split("|")[-2]) < 1e-5


def test_peers_that_are_not_installed_are_named_in_the_table(kernel_subject, monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    assert peers.label("bergson") == "bergson: not installed"
    assert peers.scorers(kernel_subject) == {}


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
    assert len(intervals.gradient_noise(1)) == 40
    assert len(intervals.entropy_noise(1)) == 20
    assert "| Gauss | 2 x 4 |" in intervals.online_noise(1)[0]
    assert len(intervals.entropy_law(1)) == 48


@pytest.mark.slow
def test_a_printed_reliability_is_held_against_the_exact_influence():
    case = reliability.Case("flat", "per_token")
    assert torch.allclose(
        torch.from_numpy(case.weight) @ case.added, case.truth, rtol=1e-6, atol=1e-9
    )
    found = reliability.row(case, 128, batches=3, groups=8)
    assert 0.9 < found["true"] < 1
