import pytest
import torch

from isentrope.nouns import vectors
from isentrope.nouns.vectors import axpy, dot, multiply, norm, weighted_products

A = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}
B = {"w": torch.tensor([[4.0, -1.0]]), "b": torch.tensor([0.5])}


def test_products_are_those_of_the_flattened_vectors():
    assert dot(A, B) == pytest.approx(3.5)
    assert norm(A) == pytest.approx(14**0.5)
    assert torch.equal(axpy(2.0, A, B)["w"], torch.tensor([[6.0, 3.0]], dtype=torch.float64))
    assert torch.equal(multiply(A, B)["b"], torch.tensor([1.5], dtype=torch.float64))


def test_sums_are_float64():
    many = {"x": torch.full((10_000,), 0.1)}
    assert dot(many, many) == pytest.approx(10_000 * float(torch.tensor(0.1)) ** 2, rel=1e-12)


def test_vectors_over_other_parameters_are_refused():
    with pytest.raises(ValueError, match="'b'"):
        dot(A, {"w": A["w"]})
    with pytest.raises(ValueError, match=r"'w' .*\(1, 2\) .*\(2,\)"):
        axpy(1.0, A, {**B, "w": torch.ones(2)})


def test_weighted_products_are_those_of_all_pairs_in_order(monkeypatch):
    monkeypatch.setattr(vectors, "COLUMNS_AT_A_TIME", 4)  # of ten entries, the last block is short
    torch.manual_seed(0)
    one, other, P = torch.randn(2, 10), torch.randn(3, 10), torch.rand(2, 5, dtype=torch.float64)
    found = weighted_products([one, other], P)
    parts = [{"w": x.view(2, 5)} for x in (*one, *other)]
    pairs = [[dot(multiply({"w": P}, a), b) for b in parts] for a in parts]
    torch.testing.assert_close(found, torch.tensor(pairs, dtype=torch.float64))
