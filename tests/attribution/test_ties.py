"""Ranks do not depend on the last bit."""

import numpy as np
import torch
from scipy.stats import rankdata

from isentrope.attribution.mid_ranks import lowest, signs, tied


def test_values_that_differ_by_rounding_share_a_rank():
    exact = np.array([[0.3, -2.0, 0.3, 1.0, 0.0], [1.0, 1.0, 2.0, -3.0, 2.0]])
    noisy = exact + 4e-16 * np.array([1, -1, 2, 0, 3])
    assert (rankdata(tied(noisy), axis=1) == rankdata(exact, axis=1)).all()


def test_other_values_rank_as_they_are():
    values = np.random.default_rng(0).standard_normal(500)
    assert (rankdata(tied(values)) == rankdata(values)).all()
    assert (tied(np.zeros(4)) == 0).all()
    assert tied(np.empty(0)).shape == (0,)


def test_rounding_has_no_sign():
    assert signs(np.array([3.0, -4e-16, 1e-3, 0.0, -1e-3])).tolist() == [1, 0, 1, 0, -1]
    assert signs(np.zeros(2)).tolist() == [0, 0]
    assert signs(np.empty(0)).shape == (0,)


def test_tokens_tied_with_the_last_one_are_in():
    assert lowest(torch.tensor([3.0, 1.0, 1.0, 1.0, 2.0]), 0.2).tolist() == [
        *(False, True, True, True, False)
    ]
    assert lowest(torch.tensor([3.0, 1.0, 2.0]), 0.2).sum() == 1
    up = torch.tensor([3.0, 1.0, 1.0 + 2e-16, 1.0 - 1e-16, 2.0], dtype=torch.float64)
    assert lowest(up, 0.2).tolist() == [False, True, True, True, False]
