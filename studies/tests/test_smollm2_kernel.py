"""Squared slopes from pairs of prompts, against the sums that they stand for."""

import itertools

import pytest
import torch

from studies import smollm2_kernel
from studies.smollm2_kernel import GROUP, against_group, squared_slopes, variance_ratio


def kernel(prompts):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(prompts * GROUP, 5, generator=generator, dtype=torch.float64)
    return w @ w.T


def test_a_squared_slope_takes_pairs_of_two_other_prompts():
    K = kernel(4)
    e = torch.randn(len(K), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    square = squared_slopes(K, e)
    for i in (0, 13, 31):
        others = [p for p in range(4) if p != i // GROUP]
        sums = {p: float((e * K[:, i]).view(4, GROUP)[p].mean()) for p in others}
        pairs = [sums[a] * sums[b] for a, b in itertools.permutations(others, 2)]
        assert float(square[i]) == pytest.approx(sum(pairs) / len(pairs))


def test_equal_sizes_of_advantages_make_the_form_exact():
    K = kernel(5)
    e = against_group(torch.arange(len(K), dtype=torch.float64).sin())
    signs = torch.arange(len(K)) % 2 * 2.0 - 1
    assert variance_ratio(K, e, 0.3 * signs.double()) == pytest.approx(1)


def test_surprisal_is_against_the_other_responses_of_the_group():
    surprisal = torch.arange(2 * GROUP, dtype=torch.float64)
    found = against_group(surprisal)
    assert float(found[3]) == pytest.approx(3 - (sum(range(GROUP)) - 3) / (GROUP - 1))


def test_cosines_are_split_by_the_prompt_of_both():
    K = torch.tensor([[4.0, 2.0, 0.0], [2.0, 4.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    sizes = smollm2_kernel.pair_sizes(K, torch.tensor([0, 0, 1]))
    assert list(sizes.values()) == pytest.approx([0.5, (0.25 / 2) ** 0.5])
