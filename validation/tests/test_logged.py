"""The definition that was logged is not taken for another one because a batch holds a rare mode."""

import math

import pytest
import torch

from isentrope.estimators.entropy_definitions import half_of_interval
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.skewed import skewed_estimate


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
