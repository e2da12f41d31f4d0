import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.fisher.truncation import truncations
from isentrope.nouns.estimate import NO_SPREAD
from tests.attribution.deleting import errors_of_dropping
from tests.attribution.test_structure import UNEVEN, planted_gram, uneven_kernel

NAMES = ["diagonal", "same_prompt", "block model", "rank 1", "rank 3", "full"]


def signals(n, seed=0):
    surprisal, x = np.random.default_rng(seed).normal(size=(2, n))
    return torch.from_numpy(surprisal), torch.from_numpy(x / n)


def naive_matrices(matrix, prompts):
    k = matrix.numpy()
    eye, same = np.eye(len(k), dtype=bool), (prompts[:, None] == prompts).numpy()
    block = np.zeros_like(k)
    for mask in (eye, same & ~eye, ~same):
        block[mask] = k[mask].mean()
    values, vectors = np.linalg.eigh(k)
    low = {
        r: sum(values[-m] * np.outer(vectors[:, -m], vectors[:, -m]) for m in range(1, r + 1))
        for r in (1, 3)
    }
    return dict(zip(NAMES, (k * eye, k * same, block, low[1], low[3], k), strict=True))


def test_every_truncation_is_the_double_sum_over_its_matrix():
    matrix, _ = uneven_kernel()
    S, x = signals(11)
    e = (S.mean() - S) / 11
    found = truncations(SquareKernel.of(matrix, UNEVEN), S, x, leading_counts=(1, 3, 99))
    assert list(found) == NAMES
    full = 1.1 * ((e @ matrix - e * matrix.diagonal()) * x).numpy()
    for name, m in naive_matrices(matrix, UNEVEN).items():
        expected = np.zeros(11)
        for i in range(11):
            for j in range(11):
                if i != j or name == "diagonal":
                    expected[j] += float(e[i]) * m[i, j] * float(x[j])
        expected *= 1 if name == "diagonal" else 11 / 10
        row = found[name]
        assert row.total.value == pytest.approx(expected.sum())
        assert row.ratio.value == pytest.approx(expected.sum() / full.sum())
        assert row.pearson.value == pytest.approx(pearsonr(expected, full).statistic)
        assert row.spearman.value == pytest.approx(spearmanr(expected, full).statistic)


def test_errors_are_those_of_dropping_each_prompt():
    matrix, prompts = planted_gram(8, 3, seed=1)
    S, x = signals(24)

    def without(k):
        kernel = SquareKernel.of(matrix[k][:, k], prompts[k])
        rest = truncations(kernel, S[k], x[k], leading_counts=(1, 3))
        return [(r.total.value * 24 / 21, r.ratio.value) for r in rest.values()]

    found = truncations(SquareKernel.of(matrix, prompts), S, x, leading_counts=(1, 3))
    ours = [(r.total.se, r.ratio.se) for r in found.values()]
    np.testing.assert_allclose(ours, errors_of_dropping(prompts, without), rtol=1e-3, atol=1e-12)
    assert {(r.total.n, r.ratio.n) for r in found.values()} == {(8, 8)}


def test_a_kernel_that_is_its_truncation_is_predicted_wholly():
    S, x = signals(11)
    same = (UNEVEN[:, None] == UNEVEN).double()
    v = torch.linspace(-1, 2, 11, dtype=torch.float64)
    exact = {
        "same_prompt": same * torch.outer(v, v),
        "block model": torch.eye(11) * 2 + same * 0.5 + 0.3,
        "rank 1": torch.outer(v, v),
    }
    for name, matrix in exact.items():
        row = truncations(SquareKernel.of(matrix, UNEVEN), S, x, leading_counts=(1,))[name]
        assert row.ratio.value == pytest.approx(1)
        assert row.ratio.se < 1e-6
        assert row.pearson.value == pytest.approx(1)


def test_all_ranks_together_are_the_full_kernel():
    matrix, _ = uneven_kernel()
    found = truncations(SquareKernel.of(matrix, UNEVEN), *signals(11), leading_counts=(11,))
    assert found["rank 11"].total.value == pytest.approx(found["full"].total.value)
    assert found["rank 11"].pearson.value == pytest.approx(1)


def policy_like(prompts, group, seed):
    """Rows (f_i, own part), surprisal and advantage that both go with f: δH₁ = −Cov(S,f) E[fA]."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(prompts), group)
    n, own = len(index), rng.normal(size=(len(index), 40)) / 80**0.5
    by_prompt = rng.normal(size=(prompts, 40))[index] / 160**0.5
    f = 0.5 + 0.5 * rng.normal(size=prompts)[index] + rng.normal(size=n)
    s, a = f + 0.5 * rng.normal(size=(2, n))
    a -= np.repeat(a.reshape(prompts, group).mean(1), group)
    rows = np.hstack([f[:, None], by_prompt + own])
    matrix, S, x, index = map(torch.from_numpy, (rows @ rows.T, s, a / n, index))
    return SquareKernel.of(matrix, index), S, x


def test_without_self_pairs_the_full_sum_is_unbiased():
    batches = [policy_like(40, 4, seed) for seed in range(400)]
    centred = ((k, (S.mean() - S) / 160, x) for k, S, x in batches)
    full = [float((e @ k.matrix - e * k.diagonal) @ x) * 160 / 159 for k, e, x in centred]
    some = [truncations(*b, leading_counts=())["full"].total.value for b in batches[:3]]
    np.testing.assert_allclose(some, full[:3], rtol=1e-10)
    truth = -1.25 * 0.75 * (1 - 1 / 40)  # S̄ is a mean over 40 prompts
    assert abs(np.mean(full) - truth) < 4 * np.std(full) / 20


@pytest.mark.slow
def test_intervals_of_ratios_and_correlations_cover_as_stated():
    found = [truncations(*policy_like(30, 4, seed), leading_counts=()) for seed in range(300)]
    means = {
        name: np.mean([t[name].total.value for t in found]) for name in NAMES if "rank" not in name
    }
    for name in ("diagonal", "same_prompt", "block model"):
        truth = {"ratio": means[name] / means["full"]}
        truth |= {
            q: np.mean([getattr(t[name], q).value for t in found]) for q in ("pearson", "spearman")
        }
        for quantity, value in truth.items():
            given = [getattr(t[name], quantity) for t in found]
            given = [x for x in given if np.isfinite(x.ci_low)]
            assert len(given) > 250
            # 0.955 to 0.99 in 600 batches
            assert np.mean([x.covers(value) for x in given]) >= 0.93, (name, quantity)


def test_a_sum_lost_in_noise_gives_no_interval_of_the_ratio():
    matrix, prompts = planted_gram(10, 3)
    found = truncations(SquareKernel.of(matrix, prompts), *signals(30))
    assert found["full"].total.covers(0)
    assert np.isnan(found["diagonal"].ratio.ci_low)
    assert "not distinguishable from zero" in found["diagonal"].ratio.warnings[0]
    assert found["full"].ratio.value == 1


def test_the_ratio_has_an_interval_exactly_where_the_sum_is_not_zero():
    withheld = []
    for seed in range(30):
        found = truncations(*policy_like(12, 4, seed), leading_counts=())
        withheld.append(found["full"].total.covers(0))
        assert np.isnan(found["diagonal"].ratio.ci_low) == withheld[-1]
    assert 2 < sum(withheld) < 28


def test_a_correlation_that_one_prompt_makes_whole_still_has_an_interval():
    """Without one of four prompts the ranks of the others agree in some of these kernels."""
    for seed in range(4):
        matrix, prompts = planted_gram(4, 2, seed=seed)
        found = truncations(
            SquareKernel.of(matrix, prompts), *signals(8, seed), leading_counts=(1, 3)
        )
        for row in list(found.values())[:-1]:
            for found in (row.pearson, row.spearman):  # ranks that agree in any case have no error
                assert np.isfinite(found.ci_low) or NO_SPREAD in found.warnings


def test_influences_that_do_not_vary_have_no_correlation_and_say_so():
    matrix, prompts = planted_gram(6, 2)
    S, x = signals(12)
    row = truncations(SquareKernel.of(matrix, prompts), S, torch.zeros_like(x))["full"]
    assert bool(torch.tensor(row.pearson.value).isnan())
    assert row.pearson.warnings == ("The influences do not vary, so there is no correlation.",)
