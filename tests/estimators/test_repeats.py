"""Means over repeats, whose two errors are known from different numbers of draws."""

import math

import pytest
import torch
from scipy.stats import t as student

from isentrope.estimators.repeats import ratio_of_means


def test_each_error_of_a_ratio_has_the_quantile_of_its_own_draws():
    """The bottom has no error, so that the interval of the ratio is that of the top."""
    tops = [1.0, 1.6, 2.2]
    of_prompts = 0.3**2
    shared = torch.tensor([[of_prompts, 0.0], [0.0, 0.0]], dtype=torch.float64)
    value, error, low, high = ratio_of_means(
        tops, [2.0, 2.0, 2.0], shared=shared, freedom=40.0, confidence=0.95, sign="any"
    )
    of_repeats = 0.6**2 / 3
    half = math.hypot(
        student.ppf(0.975, 2) * of_repeats**0.5, student.ppf(0.975, 40) * of_prompts**0.5
    )
    assert value == pytest.approx(0.8)
    assert error == pytest.approx((of_repeats + of_prompts) ** 0.5 / 2)
    assert (low, high) == pytest.approx((0.8 - half / 2, 0.8 + half / 2))
