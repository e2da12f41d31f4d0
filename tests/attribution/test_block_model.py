import numpy as np
import pytest
import torch

from isentrope.attribution.fisher.square import SquareKernel, block_model, block_model_table
from tests.attribution.deleting import errors_of_dropping
from tests.attribution.test_structure import UNEVEN, planted_gram, uneven_kernel

PARTS = ["diagonal", "same_prompt", "constant", "low_rank", "rest"]


def planted(a, b, c, prompts=UNEVEN):
    same = (prompts[:, None] == prompts).double()
    return a * torch.eye(len(prompts)) + b * (same - torch.eye(len(prompts))) + c


def test_a_planted_block_matrix_is_found_exactly():
    found = block_model(SquareKernel.of(planted(3.0, 0.5, 0.2), UNEVEN))
    assert found["a"].value == pytest.approx(3.0)
    assert found["b"] is not None
    assert found["b"].value == pytest.approx(0.5)
    assert found["c"].value == pytest.approx(0.2)
    assert max(found["a"].se, found["b"].se, found["c"].se) < 1e-12
    assert found["low_rank"].value < 1e-20
    assert found["rest"].value == pytest.approx(0, abs=1e-12)


def test_the_coefficients_are_those_of_least_squares():
    matrix, _ = uneven_kernel()
    same = (UNEVEN[:, None] == UNEVEN).numpy()
    design = np.stack([np.eye(11), same & ~np.eye(11, dtype=bool), np.ones((11, 11))])
    design = design.reshape(3, -1).T
    target = matrix.numpy().ravel()
    found = block_model(SquareKernel.of(matrix, UNEVEN), rank=2)
    assert found["b"] is not None
    coefficients = [found["a"].value, found["b"].value, found["c"].value]
    np.testing.assert_allclose(coefficients, np.linalg.lstsq(design, target)[0])
    explained, last = [], 0.0
    for k in (1, 2, 3):
        fitted = design[:, :k] @ np.linalg.lstsq(design[:, :k], target)[0]
        explained.append(((fitted**2).sum() - last) / (target**2).sum())
        last = (fitted**2).sum()
    np.testing.assert_allclose([found[p].value for p in PARTS[:3]], explained)


def test_a_planted_direction_is_what_the_blocks_leave():
    """With v = ±1 of sum zero, I and 11ᵀ take n/(n − 1) off its eigenvalue n, and turn nothing."""
    v = torch.ones(40, dtype=torch.float64)
    v[::2] = -1
    matrix = planted(2.0, 0.0, 0.3, torch.arange(40)) + 0.7 * torch.outer(v, v)
    found = block_model(SquareKernel.of(matrix, torch.arange(40)), rank=1)
    low_rank = (0.7 * (40 - 40 / 39)) ** 2 / matrix.square().sum()
    assert found["low_rank"].value == pytest.approx(float(low_rank), rel=1e-9)


def test_the_parts_add_up_to_one_and_more_rank_explains_more():
    matrix, _ = uneven_kernel()
    by_rank = [block_model(SquareKernel.of(matrix, UNEVEN), rank=r) for r in (0, 1, 5, 11)]
    for found in by_rank:
        assert list(found)[3:] == PARTS
        assert sum(found[part].value for part in PARTS) == pytest.approx(1)
    shares = [e["low_rank"].value for e in by_rank]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert by_rank[-1]["rest"].value == pytest.approx(0, abs=1e-12)


def test_errors_of_a_b_and_c_are_those_of_dropping_each_prompt():
    matrix, _ = uneven_kernel()

    def without(k):
        rest = block_model(SquareKernel.of(matrix[k][:, k], UNEVEN[k]))
        return [rest[name].value for name in "abc"]

    found = block_model(SquareKernel.of(matrix, UNEVEN))
    errors = [found[name].se for name in "abc"]
    np.testing.assert_allclose(errors, errors_of_dropping(UNEVEN, without))


def test_one_response_a_prompt_has_no_b():
    matrix, _ = planted_gram(12, 1)
    found = block_model(SquareKernel.of(matrix, torch.arange(12)))
    assert found["b"] is None
    assert "same_prompt" not in found
    assert sum(found[part].value for part in PARTS if part in found) == pytest.approx(1)
    assert "b" not in set(block_model_table(found)["quantity"])


@pytest.mark.slow
def test_the_intervals_of_a_b_and_c_cover_as_stated():
    found = [
        block_model(SquareKernel.of(*planted_gram(20, 4, own=0.5, seed=s)), rank=0)
        for s in range(300)
    ]
    for kind, truth in (("a", 0.25 + 1.0 + 0.09), ("b", 1.0 + 0.09), ("c", 1.0)):
        covered = [model[kind].covers(truth) for model in found]
        assert 0.92 <= np.mean(covered) <= 0.98, kind


@pytest.mark.slow
def test_the_intervals_of_the_explained_fractions_cover_as_stated():
    found = [block_model(SquareKernel.of(*planted_gram(24, 3, seed=s)), rank=1) for s in range(300)]
    for part in PARTS:
        mean = np.mean([e[part].value for e in found])
        lowest = 0.90 if part == "low_rank" else 0.92  # as its docstring says
        assert lowest <= np.mean([e[part].covers(mean) for e in found]) <= 0.98, part
