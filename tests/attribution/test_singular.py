"""Singular values of a block, its truncations, and the jackknife over both sides."""

import numpy as np
import pytest
import torch

from isentrope.attribution.fisher.block import (
    block_truncations,
    deletions,
    over_deletions,
    singular_spectrum,
)
from isentrope.attribution.fisher.pair_classes import kernel_form
from isentrope.attribution.fisher.prompt_pairs import PromptPairs
from isentrope.attribution.fisher.spectrum import kernel_spectrum
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.nouns.freedom import t_quantile
from tests.attribution.test_pair_classes import naive, numbers


def test_of_a_batch_with_itself_it_is_the_spectrum():
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K, prompts = rows @ rows.T, torch.arange(9) % 3
    found = singular_spectrum(K, PromptPairs(prompts, prompts), (K.diagonal(), K.diagonal()))
    square = kernel_spectrum(SquareKernel.of(K, prompts))
    assert torch.allclose(found.values, square.eigenvalues, atol=1e-10)
    assert found.effective_rank.value == pytest.approx(square.effective_rank.value)
    assert found.shares[2].value == pytest.approx(square.shares[2].value)
    assert found.fitted_dimension.value == pytest.approx(square.fitted_dimension.value)


def test_an_effective_rank_lies_between_one_and_the_smaller_side():
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(6, 3, generator=draw, dtype=torch.float64)
    K, prompts = rows @ rows.T, torch.arange(6) % 3
    both = K.diagonal(), K.diagonal()
    block = singular_spectrum(K, PromptPairs(prompts, prompts), both)
    for found in (block, kernel_spectrum(SquareKernel.of(K, prompts))):
        rank = found.effective_rank
        half = rank.se * t_quantile(rank.degrees_of_freedom)
        assert rank.value - half < 1
        assert rank.ci_low == 1
        assert rank.ci_high == min(rank.value + half, 6)
        assert found.fitted_dimension.ci_low >= 1


def test_the_error_deletes_prompts_of_each_side():
    K, *_ = numbers()
    rows, columns = torch.arange(12) % 4, 4 + torch.arange(8) % 3  # no prompt is shared

    def rank(block):
        values = np.linalg.svd(block.numpy(), compute_uv=False)
        return values.sum() ** 2 / (values**2).sum()

    without = [
        [rank(K[rows != p]) for p in range(4)],
        [rank(K[:, columns != p]) for p in (4, 5, 6)],
    ]
    variance = sum((1 - 1 / len(x)) * len(x) * np.var(x) for x in without)
    ones = torch.ones(12, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    found = singular_spectrum(K, PromptPairs(rows, columns), ones).effective_rank
    assert found.value == pytest.approx(rank(K))
    assert found.se == pytest.approx(variance**0.5, rel=1e-9)
    assert found.n == 3


def test_two_means_have_the_textbook_error_of_two_samples():
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=20), draw.normal(size=12)
    rows, columns = torch.arange(20), 20 + torch.arange(12)
    removed = deletions(PromptPairs(rows, columns))
    left = [a[d.rows.numpy()].mean() + b[d.columns.numpy()].mean() for d in removed]
    found = over_deletions(torch.tensor([a.mean() + b.mean(), *left]), removed, "")
    assert found.se == pytest.approx(np.sqrt(a.var(ddof=1) / 20 + b.var(ddof=1) / 12))
    assert found.n == 12
    unknown = over_deletions(torch.tensor([1.0, np.nan, *left[1:]]), removed, "")
    assert np.isnan([unknown.ci_low, unknown.ci_high]).all()


def test_more_prompts_than_groups_are_deleted_together():
    removed = deletions(PromptPairs(torch.arange(100), torch.arange(40, 100)), max_deletions=8)
    assert [d.kind for d in removed] == ["rows"] * 8 + ["both"] * 8
    assert all(bool((~d.columns).any()) == (d.kind == "both") for d in removed)
    assert sum((~d.rows).long() for d in removed).tolist() == [1] * 100


def test_random_directions_have_no_value_above_their_null():
    draw = np.random.default_rng(1)
    norms = np.exp(0.2 * draw.normal(size=60))[:, None]
    G = draw.normal(size=(60, 40)) * norms
    E, U = torch.from_numpy(G[:40]), torch.from_numpy(G[40:])
    diagonals = (E.square().sum(1), U.square().sum(1))
    pairs = PromptPairs(torch.arange(40), 40 + torch.arange(20))
    found = singular_spectrum(E @ U.T, pairs, diagonals)
    assert found.fitted_dimension.value == pytest.approx(40, rel=0.2)
    assert found.null.effective_rank == pytest.approx(found.effective_rank.value, rel=0.2)
    common = torch.from_numpy(draw.normal(size=40)) * 0.6
    E, U = E + common, U + common
    diagonals = (E.square().sum(1), U.square().sum(1))
    found = singular_spectrum(E @ U.T, pairs, diagonals)
    assert found.null.above == 1
    assert found.values[0] > 1.3 * found.null.upper


def test_truncations_are_double_sums_over_what_is_left_of_the_block():
    K, S, x, rows, columns = numbers()
    found = block_truncations(K, S, x, PromptPairs(rows, columns), leading_counts=(1, 3, 8, 99))
    assert list(found) == ["same_prompt", "rank 1", "rank 3", "rank 8", "full"]
    a, s, b = np.linalg.svd(K.numpy(), full_matrices=False)
    matrices = {f"rank {r}": (a[:, :r] * s[:r]) @ b[:r] for r in (1, 3, 8)}
    matrices["same_prompt"] = K.numpy() * (rows[:, None] == columns).numpy()
    matrices["full"] = K.numpy()
    full = naive(K, S, x).sum(0)
    for name, m in matrices.items():
        expected = naive(torch.from_numpy(m), S, x).sum(0)
        assert found[name].total.value == pytest.approx(expected.sum(), rel=1e-8)
        assert found[name].pearson.value == pytest.approx(np.corrcoef(expected, full)[0, 1])
    assert found["full"].total.value == pytest.approx(kernel_form(K, S, x, rows).value, rel=1e-10)


def test_without_a_shared_prompt_there_is_no_same_prompt_row():
    K, S, x, rows, columns = numbers()
    pairs = PromptPairs(rows, columns + 9)
    assert list(block_truncations(K, S, x, pairs, leading_counts=(2,))) == ["rank 2", "full"]
