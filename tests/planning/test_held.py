"""What a measuring verb holds without any pass, beside what is loaded and stored."""

import pytest
import torch

from isentrope import Policy, Precision
from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.models.checkpoint import meta_model
from isentrope.planning import memory

FLOAT32, FLOAT64 = Precision("float32"), Precision("float64")


@pytest.fixture(scope="module")
def shapes(tiny):
    return meta_model(tiny / "step_4")


@pytest.fixture(scope="module")
def policy(tiny):
    return Policy.from_checkpoint(tiny / "step_4", precision="float64")


def count(model, trainable=False):
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def test_shapes_are_those_of_the_loaded_model(tiny, policy):
    model = meta_model(tiny / "step_4")
    assert count(model) == count(policy.model)
    assert count(model, trainable=True) == sum(p.numel() for p in policy.theta.values())


def test_trainable_patterns_are_those_of_the_checkpoint(tiny):
    whole = meta_model(tiny / "base")
    assert count(whole, trainable=True) == count(whole)
    some = meta_model(tiny / "base", trainable_patterns=["*layernorm*"])
    model = Policy.from_checkpoint(tiny / "base").model
    norms = sum(p.numel() for n, p in model.named_parameters() if "layernorm" in n)
    assert count(some, trainable=True) == norms


def test_weights_are_kept_in_float32_beside_the_copy_in_use(shapes, policy):
    copies = sum(p.nbytes for p in policy.model.parameters())
    terms = memory.held(shapes, FLOAT64, Storage())
    assert terms["weights"] == 4 * count(shapes)
    assert terms["weights in float64"] == copies
    assert set(memory.held(shapes, FLOAT32, Storage())) == {"weights", "step"}


@pytest.mark.parametrize("kept", ["exact", "bfloat16"])
def test_stored_rows_of_a_kernel_are_those_that_are_held(shapes, policy, kept):
    storage = Storage(kept=kept)
    store = GradientStore(policy.theta, 600, storage)
    bytes_held = sum(rows.nbytes for rows in store._rows.values())
    sides = ((600, None), (8, 600))
    terms = memory.held(shapes, FLOAT64, storage, sides=sides)
    assert terms["stored gradients"] == bytes_held
    assert terms["step"] == memory.STEP_VECTORS * 8 * count(shapes, trainable=True)
    disk = memory.held(shapes, FLOAT64, Storage(where="disk"), 8, sides)
    assert not {"stored gradients", "stored gradient groups"} & set(disk)


def test_groups_are_stored_at_float32_or_more(shapes):
    for precision, size in ((FLOAT64, 8), (FLOAT32, 4), (Precision("bfloat16"), 4)):
        terms = memory.held(shapes, precision, Storage(), 16)
        assert terms["stored gradient groups"] == 16 * size * count(shapes, trainable=True)


def test_the_gauge_counts_what_is_alive_at_once():
    present = torch.zeros(1000)
    alive = memory.Alive("cpu", [present])
    with alive:
        kept = torch.zeros(250)
        for _ in range(3):
            torch.zeros(2000)
        kept.add_(1)
        present.view(10, 100)
    assert alive.peak == 4 * 3250
    assert alive.now == 4 * 1250
