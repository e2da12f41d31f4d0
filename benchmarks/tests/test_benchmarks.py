"""The benchmarks run, at a size that measures nothing."""

import pytest
import torch

from benchmarks import cost, kernel, peers
from isentrope.attribution.gradients.token_sum import score_sums
from isentrope.policy.gradient import weighted_gradient


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
