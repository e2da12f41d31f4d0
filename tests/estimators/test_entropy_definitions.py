"""Which definitions of entropy a batch has numbers for."""

import math

import pytest
import torch

from isentrope.estimators.entropy_definitions import definitions, half_of_interval
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import score_batch
from isentrope.estimators.skewed import skewed_estimate
from tests import cases


@pytest.mark.parametrize(("more", "several"), [(-1, True), (0, False), (1, False)])
def test_a_micro_batch_of_the_whole_batch_or_more_is_no_definition_of_its_own(more, several):
    exact = cases.small_exact("table")
    batch = exact.rollouts
    names = definitions(score_batch(exact.policy, batch), batch, {0}, len(batch) + more)
    assert ("micro_batch_means" in names) == several


def of_mean(x):
    """The mean of numbers, with its skewed interval and its size."""
    jackknife = infinitesimal_jackknife(lambda w: (x @ w / w.sum())[None], torch.arange(len(x)))
    return skewed_estimate(jackknife, 0, unit="", method=""), len(x)


@pytest.mark.parametrize(("share", "size"), [(0.05, 4.0), (0.02, 6.0)])
def test_a_batch_with_a_rare_mode_is_not_taken_for_another_definition(share, size):
    generator = torch.Generator().manual_seed(1)

    def drawn(n):
        usual = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
        rare = torch.rand(n, generator=generator) < share
        return torch.where(rare, size * usual, usual)

    missed = 0
    for _ in range(200):
        other = float(drawn(16).mean())
        E = of_mean(drawn(256))
        U = of_mean(drawn(16))
        for value, n in (E, U):
            halves = (half_of_interval((E, U), m, above=other > value.value) for m in (n, 16))
            missed += abs(other - value.value) > math.hypot(*halves)
    assert missed / 400 < 0.07  # .12 by the errors of each batch alone
