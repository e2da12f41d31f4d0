import pytest
import torch

import isentrope as ise
from isentrope import EstimatorOptions, Scores
from isentrope.estimators.resampled import coupled_change
from tests import cases


def resampled(exact, eta, n=600, seed=0, per="token"):
    batch = exact.sample(n, 0)
    v = cases.direction(exact.policy)
    return ise.resampled_entropy_change(
        exact.policy,
        batch,
        v,
        [eta],
        max_new_tokens=4,
        seed=seed,
        estimator=EstimatorOptions(per),
    )[0]


@pytest.mark.parametrize("per", cases.PERS)
def test_fresh_responses_find_a_change_that_weights_cannot(per):
    exact = cases.exact("qwen2")
    truth = exact.entropy_change(cases.direction(exact.policy), 0.5, per)
    estimate = resampled(exact, 0.5, per=per)
    assert estimate.covers(truth)
    assert abs(truth) > 4 * estimate.se


def test_common_random_numbers_cancel_noise():
    exact = cases.exact("qwen2")
    errors = [resampled(exact, eta).se for eta in (1e-3, 0.01, 0.1)]
    assert errors[0] < errors[1] / 2 < errors[2] / 4


def test_theta_is_restored_to_the_bit():
    exact = cases.exact("llama")
    before = {n: p.clone() for n, p in exact.policy.theta.items()}
    resampled(exact, 0.5, n=16)
    assert all(torch.equal(before[n], p) for n, p in exact.policy.theta.items())


def test_where_no_pair_differs_the_interval_is_a_bound_and_says_so():
    exact = cases.exact("qwen2")
    estimate = resampled(exact, 1e-6)
    assert estimate.covers(exact.entropy_change(cases.direction(exact.policy), 1e-6))
    assert "Only 0 of 600 response pairs differ" in estimate.warnings[0]
    assert estimate.ci_high - estimate.ci_low < 0.1


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.05])
def test_the_bound_covers_where_few_pairs_differ(rate):
    """A response gains 1.5 nats at a rate; the rest keep what they have."""
    generator = torch.Generator().manual_seed(0)
    n, batches, covered, mask = 256, 200, 0, torch.ones(256, 1, dtype=torch.bool)
    for _ in range(batches):
        here = torch.rand(n, 1, generator=generator, dtype=torch.float64)
        differ = torch.rand(n, generator=generator) < rate
        there = torch.where(differ[:, None], here + 1.5, here)
        pair = Scores(-here, here, mask), Scores(-there, there, mask)
        found = coupled_change(*pair, torch.arange(n), differ, EstimatorOptions("sequence"))
        covered += found.covers(1.5 * rate)
    assert covered / batches > 0.92


def test_a_small_batch_in_which_every_pair_differs_has_an_interval():
    n = 24  # fewer than would be enough, and none of them the same
    entropies = torch.arange(n, dtype=torch.float64)[:, None]
    mask = torch.ones(n, 1, dtype=torch.bool)
    base, moved = (Scores(-entropies, h, mask) for h in (entropies, entropies.square()))
    differ = torch.ones(n, dtype=torch.bool)
    estimate = coupled_change(base, moved, torch.arange(n), differ)
    assert estimate.ci_low < estimate.value < estimate.ci_high
    assert not estimate.warnings


@pytest.mark.parametrize(("different", "bounded"), [(4, True), (6, False)])
def test_of_a_small_batch_half_must_differ_for_an_error_of_its_own(different, bounded):
    here = torch.linspace(0.1, 1, 10, dtype=torch.float64)[:, None]
    differ, mask = torch.arange(10) < different, torch.ones(10, 1, dtype=torch.bool)
    there = torch.where(differ[:, None], here.square(), here)
    pair = Scores(-here, here, mask), Scores(-there, there, mask)
    found = coupled_change(*pair, torch.arange(10), differ, EstimatorOptions("sequence"))
    assert bool(found.warnings) == bounded
