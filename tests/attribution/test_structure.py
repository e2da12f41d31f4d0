import numpy as np
import pytest
import torch

from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    delete_one,
    shared_identities,
)
from isentrope.attribution.fisher.square import SquareKernel
from isentrope.attribution.fisher.structure import cross_structure, kernel_structure
from tests.attribution.deleting import errors_of_dropping


def planted_gram(prompts, group, *, shared=1.0, by_prompt=1.0, own=1.0, d=40, sd=0.3, seed=0):
    """K and prompts of score vectors f_p shared u + by_prompt u_p + own u_i.

    u is one direction, u_p and u_i random ones at right angles to it, f_p has mean 1 and variance
    sd²: E K_ij is shared² across prompts, by_prompt² + shared² (1 + sd²) within.
    """
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(prompts), group)

    def directions(n):
        rows = rng.normal(size=(n, d))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    across = by_prompt * directions(prompts)[index] + own * directions(len(index))
    scale = rng.gamma(1 / sd**2, sd**2, size=prompts)[index] if sd else np.ones(len(index))
    rows = np.hstack([shared * scale[:, None], across])
    return torch.from_numpy(rows @ rows.T), torch.from_numpy(index)


def naive(matrix, pairs):
    values = np.array([float(matrix[i, j]) for i, j in pairs])
    norms = matrix.diagonal()
    cosines = np.array([float(matrix[i, j] / (norms[i] * norms[j]).sqrt()) for i, j in pairs])
    return values.mean(), values.std(), cosines.mean(), (cosines**2).mean() ** 0.5


UNEVEN = torch.tensor([3, 3, 7, 7, 7, 1, 1, 1, 9, 9, 3])


RIGHT = torch.tensor([1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 1]).bool()


def uneven_kernel(seed=0):
    rows = torch.randn(11, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows @ rows.T, RIGHT


def test_every_relation_is_the_mean_over_its_pairs():
    matrix, right = uneven_kernel()
    found = kernel_structure(SquareKernel.of(matrix, UNEVEN), right)
    indices = range(11)
    kinds = {
        "diagonal": lambda i, j: i == j,
        "same_prompt": lambda i, j: UNEVEN[i] == UNEVEN[j] and i != j,
        "cross_prompt": lambda i, j: UNEVEN[i] != UNEVEN[j],
    }
    for kind, holds in list(kinds.items())[1:]:
        for name, of_i, of_j in (
            ("right/right", 1, 1),
            ("right/wrong", 1, 0),
            ("wrong/wrong", 0, 0),
        ):
            kinds[f"{kind} {name}"] = lambda i, j, h=holds, a=of_i, b=of_j: (
                h(i, j) and right[i] == a and right[j] == b
            )
    assert set(found.relations) == set(kinds)
    for name, holds in kinds.items():
        pairs = [(i, j) for i in indices for j in indices if holds(i, j)]
        r = found[name]
        values = [x.value for x in (r.mean, r.spread, r.mean_cosine, r.rms_cosine)]
        np.testing.assert_allclose(values, naive(matrix, pairs), rtol=1e-10, atol=1e-10)
        assert r.entries == len(pairs)


@pytest.mark.parametrize("name", ["diagonal", "same_prompt", "cross_prompt right/wrong"])
@pytest.mark.parametrize("quantity", ["mean", "spread", "mean_cosine", "rms_cosine"])
def test_the_error_is_that_of_dropping_each_prompt(name, quantity):
    matrix, right = uneven_kernel(1)

    def estimate(k=slice(None)):
        kernel = SquareKernel.of(matrix[k][:, k], UNEVEN[k])
        return getattr(kernel_structure(kernel, right[k])[name], quantity)

    found = estimate()
    error = errors_of_dropping(UNEVEN, lambda k: estimate(k).value)
    assert found.se == pytest.approx(error, rel=1e-9, abs=1e-12)
    assert found.n == 4


@pytest.mark.parametrize("quantity", ["mean", "mean_cosine", "rms_cosine"])
def test_the_difference_of_two_relations_is_one_number_with_one_error(quantity):
    matrix, _ = uneven_kernel(1)

    def difference(k=slice(None)):
        rest = kernel_structure(SquareKernel.of(matrix[k][:, k], UNEVEN[k]))
        same, other = (getattr(rest[k], quantity).value for k in ("same_prompt", "cross_prompt"))
        return same - other

    found = kernel_structure(SquareKernel.of(matrix, UNEVEN))
    estimate = found.differences[quantity]
    assert estimate.value == pytest.approx(difference(), rel=1e-12)
    assert estimate.se == pytest.approx(errors_of_dropping(UNEVEN, difference), rel=1e-9)
    row = found.to_frame().query("relation == 'same_prompt - cross_prompt'").set_index("quantity")
    assert row.loc[quantity, "se"] == estimate.se


def test_cosines_forget_the_lengths_of_rows():
    matrix, _ = uneven_kernel()
    lengths = torch.linspace(0.1, 5, 11, dtype=torch.float64)
    first, second = (
        kernel_structure(SquareKernel.of(m, UNEVEN))["cross_prompt"]
        for m in (matrix, matrix * lengths[:, None] * lengths)
    )
    assert second.rms_cosine.value == pytest.approx(first.rms_cosine.value, rel=1e-12)
    assert second.rms_cosine.se == pytest.approx(first.rms_cosine.se, rel=1e-9)
    assert second.mean.value != pytest.approx(first.mean.value, rel=0.1)


def test_a_zero_row_has_no_cosine_and_is_reported():
    matrix, _ = uneven_kernel()
    matrix[4], matrix[:, 4] = 0, 0
    found, k = kernel_structure(SquareKernel.of(matrix, UNEVEN)), torch.arange(11) != 4
    without = kernel_structure(SquareKernel.of(matrix[k][:, k], UNEVEN[k]))
    assert "1 sequences have a zero score vector" in found.warnings[0]
    for name in ("same_prompt", "cross_prompt"):
        assert found[name].mean_cosine.value == pytest.approx(without[name].mean_cosine.value)
        assert found[name].mean.value != pytest.approx(without[name].mean.value)
    assert not found.to_frame()[["value", "se"]].isna().any().any()


def test_a_rectangular_block_is_split_by_whose_prompt_it_is():
    matrix, _ = uneven_kernel()
    rows, columns, norms = slice(0, 6), slice(4, 11), matrix.diagonal()
    found = cross_structure(
        matrix[rows, columns],
        PromptPairs(UNEVEN[rows], UNEVEN[columns]),
        (norms[rows], norms[columns]),
    )
    for name, same in (("same_prompt", True), ("cross_prompt", False)):
        pairs = [(i, j) for i in range(6) for j in range(4, 11) if (UNEVEN[i] == UNEVEN[j]) == same]
        r = found[name]
        values = [x.value for x in (r.mean, r.spread, r.mean_cosine, r.rms_cosine)]
        np.testing.assert_allclose(values, naive(matrix, pairs), rtol=1e-10)
    assert found["cross_prompt"].mean.n == 3


def test_sides_without_a_common_prompt_have_cross_pairs_only():
    block = torch.randn(6, 4, dtype=torch.float64)
    found = cross_structure(block, shared_identities(list("aabbcc"), list("ddee")))
    assert list(found.relations) == ["cross_prompt"]
    assert found["cross_prompt"].mean_cosine is None
    assert found["cross_prompt"].mean.n == 2
    assert found.warnings == ("same_prompt: no such pair.",)


def test_identities_are_equal_where_keys_or_tokens_are():
    pairs = shared_identities(["x", "y", "x"], ["z", "y"])
    assert pairs.rows.tolist() + pairs.columns.tolist() == [0, 1, 0, 2, 1]
    tokens = [torch.tensor([1, 2]), torch.tensor([1])]
    pairs = shared_identities(tokens, tokens[::-1])
    assert (pairs.rows.tolist(), pairs.columns.tolist()) == ([0, 1], [1, 0])


def simulated(batches, quantity, **options):
    found = (
        kernel_structure(SquareKernel.of(*planted_gram(20, 4, seed=s, **options)))
        for s in range(batches)
    )
    return [getattr(structure[name], kind) for structure in found for name, kind in [quantity]]


def rms_cosine_of_pairs(sd=0.3, d=40):
    """Of rows f u + u_p with random unit u_p: cos² is on average E[f²/(f²+1)]² + E[1/(f²+1)]²/d."""
    f = np.random.default_rng(0).gamma(1 / sd**2, sd**2, size=10**6)
    return ((f**2 / (f**2 + 1)).mean() ** 2 + (1 / (f**2 + 1)).mean() ** 2 / d) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantity", "own", "truth"),
    [
        (("cross_prompt", "mean"), 0.5, 1.0),
        (("same_prompt", "mean"), 0.5, 1.0 + 1.09),
        (("cross_prompt", "rms_cosine"), 0.0, rms_cosine_of_pairs()),
    ],
)
def test_intervals_cover_as_stated(quantity, own, truth):
    found = simulated(400, quantity, own=own)
    values = np.array([x.value for x in found])
    assert abs(values.mean() - truth) < 4 * values.std() / 20
    assert 0.92 <= np.mean([x.covers(truth) for x in found]) <= 0.98


@pytest.mark.slow
def test_where_unrelated_rows_are_at_right_angles_the_error_is_too_large_not_too_small():
    found = simulated(400, ("cross_prompt", "mean"), shared=0.0)
    ratio = np.mean([x.se for x in found]) / np.std([x.value for x in found])
    assert 1.2 < ratio < 1.6  # √2 in theory


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, p: (k + torch.eye(11).roll(1, 0), p), "mirror images by up to 1,"),
        (lambda k, p: (k - 3 * torch.eye(11), p), "this one has -3 "),
        (lambda k, p: (k, p * 0), "cross-prompt"),
        (lambda k, p: (k / 0, p), "121 entries"),
    ],
)
def test_what_is_no_kernel_is_refused_in_a_sentence(change, message):
    matrix, _ = uneven_kernel()
    with pytest.raises(ValueError, match=message):
        kernel_structure(SquareKernel.of(*change(matrix, UNEVEN)))


def test_the_largest_eigenvalue_of_what_is_no_kernel_is_given_for_its_size():
    matrix = uneven_kernel()[0] - 3 * torch.eye(11)
    largest = float(np.linalg.eigvalsh(matrix.numpy())[-1])
    with pytest.raises(ValueError, match=rf"largest {largest:.3g}\)"):
        SquareKernel.of(matrix, UNEVEN)


def test_one_unit_has_no_error_however_many_deletions_there_are():
    found = delete_one(torch.tensor(2.0), torch.tensor([1.0, 3.0]), 1, "nats")
    assert np.isnan(found.se)
    assert found.warnings


def test_the_table_has_a_row_per_relation_and_quantity_and_the_differences():
    matrix, right = uneven_kernel()
    found = kernel_structure(SquareKernel.of(matrix, UNEVEN), right)
    rows = {(row.relation, row.quantity): row for row in found.to_frame().itertuples()}
    same, other = (found[f"{of}_prompt"] for of in ("same", "cross"))
    for name, relation in (("same_prompt", same), ("cross_prompt", other)):
        assert rows[name, "mean"].value == relation.mean.value
        assert rows[name, "mean"].entries == relation.entries
    difference = rows["same_prompt - cross_prompt", "mean"]
    assert difference.value == pytest.approx(same.mean.value - other.mean.value)
    assert difference.se == found.differences["mean"].se


def test_a_kernel_of_rounded_rows_passes_when_told():
    matrix, _ = uneven_kernel()
    rounded = matrix + 1e-4 * torch.randn(11, 11, dtype=torch.float64)
    with pytest.raises(ValueError, match="Pass rounding="):
        SquareKernel.of(rounded, UNEVEN)
    found = SquareKernel.of(rounded, UNEVEN, rounding=1e-3).matrix
    assert torch.equal(found, found.T)
