"""Vectors held in the parameters' type: with the model, on the CPU and on disk."""

import pytest
import torch

from isentrope import GradientOptions, InfluenceOptions, influence
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.storage_plan import Storage
from tests.attribution.test_influence import setting

WHERE = ("device", "cpu", "disk")


def two_tensors(dtype):
    """θ, and a vector over it in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 5), "b": (7,)}
    drawn = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    return {n: torch.zeros(s, dtype=dtype) for n, s in shapes.items()}, drawn


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_vector_is_kept_at_the_parameters_type_and_at_least_float32(where, dtype):
    theta, vector = two_tensors(dtype)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    held = HeldVectors(theta, 2, where)
    held.add(1, vector)
    held.add(0, vector, 2.0)
    for name, x in vector.items():
        assert held[1][name].dtype == torch.float64
        assert torch.equal(held[1][name], x.to(kept).double())
        assert torch.equal(held[0][name], (2 * x).to(kept).double())
    held[1]["a"].zero_()  # a copy
    assert torch.equal(held[1]["a"], vector["a"].to(kept).double())


def test_files_have_the_bytes_of_the_numbers_and_go_with_the_vectors(monkeypatch, tmp_path):
    theta, vector = two_tensors(torch.float32)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    held = HeldVectors(theta, 3, "disk")
    held.add(2, vector)
    assert sorted(file.stat().st_size for file in tmp_path.iterdir()) == [7 * 3 * 4, 15 * 3 * 4]
    del held
    assert not tmp_path.exists()


def test_a_vector_over_other_parameters_is_refused():
    theta, vector = two_tensors(torch.float32)
    with pytest.raises(ValueError, match="over different parameters"):
        HeldVectors(theta, 1).add(0, {"a": vector["a"]})


@pytest.mark.parametrize("tokens", [True, False])
def test_influence_is_the_same_wherever_the_groups_are_held(tokens):
    policy, E, U, step = setting()
    storages = [GradientOptions(storage=Storage(where=where)) for where in WHERE]
    options = [InfluenceOptions(groups=4, gradients=storage) for storage in storages]
    found = [influence(policy, E, U, step, o, tokens=tokens).entropy.by_group for o in options]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
