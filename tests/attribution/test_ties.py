"""Ranks do not depend on the last bit."""

import numpy as np
from scipy.stats import rankdata

from isentrope.attribution.ties import tied


def test_values_that_differ_by_rounding_share_a_rank():
    exact = np.array([[0.3, -2.0, 0.3, 1.0, 0.0], [1.0, 1.0, 2.0, -3.0, 2.0]])
    noisy = exact + 4e-16 * np.array([1, -1, 2, 0, 3])
    assert (rankdata(tied(noisy), axis=1) == rankdata(exact, axis=1)).all()


def test_other_values_rank_as_they_are():
    values = np.random.default_rng(0).standard_normal(500)
    assert (rankdata(tied(values)) == rankdata(values)).all()
    assert (tied(np.zeros(4)) == 0).all()
    assert tied(np.empty(0)).shape == (0,)
