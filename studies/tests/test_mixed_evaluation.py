"""Mixed evaluations agree with influence to first order, and differ from it by second order."""

import pytest

from studies.mixed_evaluation import compare
from tests import cases

RATE = 2e-4


def gap(rate):
    """Mixed evaluation less its first order, along one part of a step from one base."""
    policy = cases.lora_policy("qwen2")
    base = cases.direction(policy, seed=1)
    part = cases.direction(policy, seed=2)
    result = compare(policy, cases.ragged(12, seed=1), [base], [part], rate)
    return float(result.mixed - result.predicted), float(result.predicted)


def test_the_gap_is_of_second_order():
    whole, first = gap(RATE)
    half, _ = gap(RATE / 2)
    assert whole / half == pytest.approx(4, rel=0.1)
    assert abs(whole) < 0.1 * abs(first)
