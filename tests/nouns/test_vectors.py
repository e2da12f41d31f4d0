import pytest
import torch

from isentrope.nouns.vectors import axpy, dot, multiply, norm

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
