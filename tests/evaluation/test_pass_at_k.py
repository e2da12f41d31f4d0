"""pass@k against counting subsets, and its interval in simulation."""

from itertools import combinations

import numpy as np
import pytest
import torch

from isentrope import pass_at_k
from isentrope.evaluation.pass_at_k import prompt_scores


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_a_prompts_score_is_the_share_of_subsets_with_a_right_response(n):
    for c in range(n + 1):
        right = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = list(combinations(right, k))
            counted = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, c, k).value == pytest.approx(counted, abs=1e-12)


def test_large_counts_do_not_overflow():
    assert pass_at_k(5000, 1, 1000).value == pytest.approx(0.2, rel=1e-9)
    assert pass_at_k(5000, 0, 5000).value == 0
    assert pass_at_k(5000, 1, 5000).value == 1


def test_it_is_the_mean_over_prompts_with_their_error():
    c = torch.tensor([0, 2, 4, 4])
    found = pass_at_k(4, c, 2)
    scores = prompt_scores(torch.full((4,), 4), c, 2)
    assert found.value == pytest.approx(float(scores.mean()))
    assert found.se == pytest.approx(float(scores.std()) / 2)
    assert found.n == 4
    assert pass_at_k([8, 4], [2, 1], 4).value == pytest.approx((1 - 15 / 70 + 1) / 2)


def test_an_interval_is_there_where_every_prompt_scores_alike():
    found = pass_at_k(8, [8] * 20, 1)
    assert found.value == found.ci_high == 1
    assert 0.7 < found.ci_low < 0.95


FEW = [(0.3, 0.3, 1), (1, 1, 8), (0.2, 2, 1), (0.5, 20, 8)]
OTHERS = [(0.3, 0.3, 8), (1, 1, 1), (0.2, 2, 8), (0.5, 20, 1)]
SLOWLY = [pytest.param(*x, marks=pytest.mark.slow) for x in OTHERS]


@pytest.mark.parametrize(("a", "b", "k"), [*FEW, *SLOWLY])
def test_intervals_cover(a, b, k):
    rng = np.random.default_rng(0)
    rates = rng.beta(a, b, 400_000)
    truth = float((1 - (1 - rates) ** k).mean())
    covered = []
    for _ in range(1000):
        c = torch.from_numpy(rng.binomial(8, rng.beta(a, b, 200)))
        covered.append(pass_at_k(8, c, k).covers(truth))
    assert 0.92 <= np.mean(covered) <= 0.98


@pytest.mark.parametrize(
    ("n", "c", "k", "said"),
    [
        (4, 1, 5, "pass@5"),
        (4, 1, 0, "pass@0 needs"),
        (4, 5, 1, "between 0 and n"),
        (4, -1, 1, "between 0 and n"),
        ([8, 2], [1, 1], 4, "one has 2"),
        (4.0, 1, 1, "whole numbers"),
    ],
)
def test_counts_that_make_no_sense_are_refused(n, c, k, said):
    with pytest.raises(ValueError, match=said):
        pass_at_k(n, c, k)
