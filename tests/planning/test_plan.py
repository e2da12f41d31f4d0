"""What a plan says: exact terms, a straight line, and a change that would fit."""

import pytest
import torch

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.models.precision import Precision
from isentrope.planning.memory import Alive, Meter
from isentrope.planning.plan import (
    STEP_VECTORS,
    Plan,
    Stage,
    bytes_of,
    held,
    meta_model,
)
from isentrope.policy.language_model import Policy
from isentrope.verbs.dry_run import on_line

FLOAT32, FLOAT64 = Precision("float32"), Precision("float64")


@pytest.fixture(scope="module")
def shapes(tiny):
    return meta_model(tiny / "step_4")[0]


@pytest.fixture(scope="module")
def policy(tiny):
    return Policy.from_checkpoint(tiny / "step_4", precision="float64")


def count(model, trainable=False):
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def test_shapes_are_those_of_the_loaded_model(tiny, policy):
    model, present = meta_model(tiny / "step_4")
    assert present
    assert count(model) == count(policy.model)
    assert count(model, trainable=True) == sum(p.numel() for p in policy.theta.values())


def test_trainable_patterns_are_those_of_the_checkpoint(tiny):
    whole, _ = meta_model(tiny / "base")
    assert count(whole, trainable=True) == count(whole)
    some, _ = meta_model(tiny / "base", trainable_patterns=["*layernorm*"])
    model = Policy.from_checkpoint(tiny / "base").model
    norms = sum(p.numel() for n, p in model.named_parameters() if "layernorm" in n)
    assert count(some, trainable=True) == norms


def test_weights_are_kept_in_float32_beside_the_copy_in_use(shapes, policy):
    copies = sum(p.nbytes for p in policy.model.parameters())
    found = held(shapes, FLOAT64, Storage())
    assert found["weights"] == 4 * count(shapes)
    assert found["weights in float64"] == copies
    assert set(held(shapes, FLOAT32, Storage())) == {"weights", "step"}


@pytest.mark.parametrize("kept", ["exact", "bfloat16"])
def test_stored_rows_of_a_kernel_are_those_that_are_held(shapes, policy, kept):
    storage = Storage(kept=kept)
    store = GradientStore(policy.theta, 600, storage)
    bytes_held = sum(rows.nbytes for rows in store._rows.values())
    sides = ((600, None), (8, 600))
    found = held(shapes, FLOAT64, storage, sides=sides)
    assert found["stored gradients"] == bytes_held
    assert found["step"] == STEP_VECTORS * 8 * count(shapes, trainable=True)
    disk = held(shapes, FLOAT64, Storage(where="disk"), 8, sides)
    assert not {"stored gradients", "stored gradient groups"} & set(disk)


def test_groups_are_stored_at_float32_or_more(shapes):
    for precision, size in ((FLOAT64, 8), (FLOAT32, 4), (Precision("bfloat16"), 4)):
        found = held(shapes, precision, Storage(), 16)
        assert found["stored gradient groups"] == 16 * size * count(shapes, trainable=True)


def test_the_gauge_counts_what_is_alive_at_once():
    known = torch.zeros(1000)
    alive = Alive("cpu", [known])
    meter = Meter(alive)
    with alive, meter.stage("outer"):
        kept = torch.zeros(250)
        with meter.stage("inner"):
            for _ in range(3):
                torch.zeros(2000)
        kept.add_(1)
        known.view(10, 100)
    assert meter.peaks == {"inner": 4 * 3250, "outer": 4 * 3250}
    assert alive.now == 4 * 1250


def test_a_line_goes_through_both_runs_and_never_falls():
    assert on_line([0.25, 0.5], [3.0, 4.0])(1) == 6.0
    assert on_line([0.25, 0.5], [4.0, 3.0])(1) == 3.0
    assert on_line([1.0, 1.0], [4.0, 3.0])(1) == 3.0


def plan_of(memory, **options):
    stages = (
        Stage("sampling", 1.0, 600, 200, "sampling.batch_size", 64),
        Stage("sweep", 2.0, 1000, 200, value=8000, **options),
    )
    return Plan("measure", "step_4", {}, 0, memory, stages)


def test_the_cure_is_on_the_line_of_each_stage_that_does_not_fit():
    assert plan_of(1000).fits
    assert plan_of(1000).seconds == 3.0
    assert plan_of(999).cure == "--set sampling.max_tokens=4096 would fit."
    both = plan_of(400).cure
    assert both == "--set sampling.batch_size=32 --set sampling.max_tokens=1024 would fit."
    assert "held whatever is read at a time" in plan_of(200).cure


def test_micro_batches_that_would_fit_divide_a_step():
    for room, size in ((900, 6), (599, 4), (420, 3), (299, 1)):
        stage = Stage("update", None, 1200, 120, "training.micro_batch", 12)
        found = Plan("train", "toy", {}, 0, room, (stage,))
        assert found.cure == f"--set training.micro_batch={size} would fit."


def test_memory_is_given_with_its_unit():
    assert bytes_of("16GB") == 16 * 10**9
    assert bytes_of("1.5 GiB") == 3 * 2**29
    for wrong in ("16", "GB", "-1GB", "0GB", "1e3GB"):
        with pytest.raises(ValueError, match="is not a size: write 16GB"):
            bytes_of(wrong)
