"""What is held is exact: parameters, types and groups, multiplied."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from isentrope.attribution.gradients.gradient_store import GradientStore
from isentrope.attribution.gradients.held_vectors import HeldVectors
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.models.precision import Precision
from isentrope.planning.followed import Batch
from isentrope.planning.holdings import STEP_VECTORS, Holdings
from isentrope.planning.measuring import Measuring
from isentrope.planning.plan import bytes_of, least
from isentrope.planning.shapes import shapes_of
from isentrope.planning.sizes import Sizes
from isentrope.policy.language_model import Policy

FLOAT32, FLOAT64 = Precision("float32"), Precision("float64")


@pytest.fixture(scope="module")
def shapes(tiny):
    return shapes_of(tiny / "step_4")


@pytest.fixture(scope="module")
def policy(tiny):
    return Policy.from_checkpoint(tiny / "step_4", precision="float64")


def test_shapes_are_those_of_the_loaded_model(shapes, policy, tiny):
    assert shapes.parameters == sum(p.numel() for p in policy.model.parameters())
    assert shapes.trainable == sum(p.numel() for p in policy.theta.values())
    assert shapes.largest == max(p.numel() for p in policy.theta.values())
    files = [*(tiny / "base").glob("*.safetensors"), *(tiny / "step_4").glob("*.safetensors")]
    assert shapes.file_bytes == sum(file.stat().st_size for file in files)


def test_trainable_patterns_are_those_of_the_checkpoint(tiny):
    whole = shapes_of(tiny / "base")
    assert whole.trainable == whole.parameters
    with safe_open(tiny / "base" / "model.safetensors", "pt") as file:
        norms = [k for k in file.keys() if "layernorm" in k]  # noqa: SIM118
        size = sum(file.get_tensor(k).numel() for k in norms)
    assert shapes_of(tiny / "base", trainable_patterns=["*layernorm*"]).trainable == size


def test_weights_are_kept_in_float32_beside_the_copy_in_use(shapes, policy):
    n = sum(p.numel() for p in policy.model.parameters())
    held = Holdings(shapes)
    assert [term.size for term in held.weights(FLOAT32)] == [4 * n]
    copies = sum(p.nbytes for p in policy.model.parameters())
    assert [term.size for term in held.weights(FLOAT64)] == [4 * n, copies]


def test_a_spread_base_is_a_share_of_its_layers_and_one_whole(shapes, policy):
    n, whole = shapes.parameters, dict(policy.model.named_parameters())
    layers = sum(p.numel() for k, p in whole.items() if ".layers." in k and "lora" not in k)
    assert shapes.spread == layers
    each = n - layers + layers // 4
    held = Holdings(shapes, spread_over=4).weights(FLOAT32)
    assert [term.size for term in held] == [4 * each, 4 * layers // shapes.layers]


def test_trained_layers_of_a_model_without_adapter_are_spread(tiny):
    shapes = shapes_of(tiny / "base")
    assert 0 < shapes.spread == shapes.spread_trainable < shapes.trainable
    alone, one_of_4 = (Holdings(shapes, n).vectors("v", 1).size for n in (1, 4))
    whole = shapes.trainable - shapes.spread
    assert one_of_4 - 8 * whole == pytest.approx((alone - 8 * whole) / 4, abs=8)


def test_a_pass_over_spread_weights_has_buffers_of_exchanges(tiny, shapes):
    base = shapes_of(tiny / "base")
    largest, layer = base.largest_spread, base.spread // base.layers
    assert largest == max(
        x.numel()
        for n, x in Policy.from_checkpoint(tiny / "base").model.named_parameters()
        if ".layers." in n
    )
    held = Holdings(base, spread_over=2)
    buffers = [term.size for term in held.exchanged(FLOAT32, backward=False)]
    assert buffers == [4 * layer, 8 * (largest + largest // 2)]
    buffers = [term.size for term in held.exchanged(FLOAT64, backward=True)]
    assert buffers == [8 * layer, 8 * (2 * largest + largest // 2)]
    adapter = Holdings(shapes, spread_over=2).exchanged(FLOAT32, backward=False)
    assert [term.size for term in adapter] == [4 * shapes.spread // shapes.layers, 0]
    assert Holdings(base).exchanged(FLOAT32, backward=True) == ()


def test_spread_theta_takes_one_direction_a_pass(tiny, shapes):
    base = shapes_of(tiny / "base")
    assert [Holdings(base, n).at_once(20) for n in (1, 2)] == [8, 1]
    assert [Holdings(shapes, n).at_once(20) for n in (1, 2)] == [8, 8]
    d = Holdings(base, 2).trainable
    assert Holdings(base, 2).directions(20, FLOAT32).size == (4 + 8) * d


def test_every_process_reads_the_whole_file_of_the_optimizer(tiny, tmp_path):
    size = (tiny / "step_4" / "optimizer.pt").stat().st_size
    assert shapes_of(tiny / "step_4").optimizer_bytes == size
    assert shapes_of(tiny / "base").optimizer_bytes == 0
    assert shapes_of(tiny / "base", optimizer=tiny / "step_4").optimizer_bytes == size
    batch = Batch(4, 4, 3)
    sizes = Sizes(E=batch, U=batch, processes=2, sharded=True)
    shapes = shapes_of(tiny / "base", optimizer=tiny / "step_4")
    stages = {stage.name: stage for stage in Measuring(shapes, sizes).stages("measure")}
    terms = {term.name: term.size for term in stages["optimizer's state"].terms}
    assert terms["optimizer's file"] == size
    assert terms["optimizer moments"] == 2 * 2 * 8 * Holdings(shapes, 2).trainable


def test_second_derivatives_are_checked_along_a_direction_of_their_own(shapes):
    batch = Batch(4, 4, 3)
    n, d = shapes.parameters, shapes.trainable

    def peak(**options):
        stages = Measuring(shapes, Sizes(E=batch, U=batch, **options)).stages("measure")
        return {s.name: s.peak for s in stages}.get("second-derivative check")

    assert peak() == 12 * n + 8 * d * (STEP_VECTORS + 1)
    assert peak(measuring=FLOAT32) == 4 * n + 8 * d * (STEP_VECTORS + 1) + 8 * n
    assert peak(order=1) is None


def test_what_fits_only_where_it_is_spread_is_refused_where_it_is_not(shapes):
    batch = Batch(2, 1, 1)
    sizes = Sizes(E=batch, U=batch, processes=4)
    enough = least("kernel", "step_4", shapes, replace(sizes, sharded=True), 10**12).peak
    assert not least("kernel", "step_4", shapes, sizes, enough).fits
    many = least("kernel", "step_4", shapes, replace(sizes, processes=8, sharded=True), 10**12)
    assert many.largest.name != "load"  # files of a spread base are mapped


def test_stored_groups_are_those_that_are_held(shapes, policy):
    vectors = HeldVectors(policy.theta)
    for _ in range(8):
        vectors.append(policy.theta)
    bytes_held = sum(x.nbytes for x in vectors._held if isinstance(x, torch.Tensor))
    assert Holdings(shapes).groups(8, FLOAT64, Storage()).size == bytes_held
    assert Holdings(shapes).groups(8, FLOAT32, Storage()).size == bytes_held // 2
    assert Holdings(shapes).groups(8, FLOAT64, Storage(where="disk")).size == 0


@pytest.mark.parametrize("kept", ["exact", "bfloat16"])
def test_stored_rows_of_a_kernel_are_those_that_are_held(shapes, policy, kept):
    storage = Storage(kept=kept)
    store = GradientStore(policy.theta, 6, storage)
    bytes_held = sum(rows.nbytes for rows in store._rows.values())
    assert Holdings(shapes).kernel_rows(6, None, FLOAT64, storage).size == bytes_held


def test_a_memory_for_rows_cuts_them_into_tiles(shapes):
    row = 8 * shapes.trainable
    storage = Storage(memory=2 * row)
    assert Holdings(shapes).kernel_rows(6, None, FLOAT64, storage).size == 2 * row


def test_the_step_has_five_vectors(shapes):
    assert Holdings(shapes).step().size == STEP_VECTORS * 8 * shapes.trainable


def test_without_passes_a_stage_is_what_is_held(shapes):
    sizes = Sizes(Batch(8, 4, 3), Batch(6, 4, 3), groups=4, reward=True)
    stages = {s.name: s for s in Measuring(shapes, sizes).stages("influence")}
    n, d = shapes.parameters, shapes.trainable
    tokens = stages["influence of tokens"]
    directions = 9  # eight at a time, and the part that they come from
    assert tokens.peak == 12 * n + 8 * d * (STEP_VECTORS + 2 * 4 + directions)
    cache = 8 * (4 + 3) * shapes.cached_numbers * 8
    assert cache in [term.size for term in stages["sampling"].terms]


def test_past_updates_hold_another_checkpoint_and_take_a_pass_each(shapes):
    def stages(past):
        sizes = Sizes(Batch(8, 4, 3), Batch(6, 4, 3), groups=4, tokens=False, past=past)
        return {s.name: s for s in Measuring(shapes, sizes).stages("influence")}

    name, n = "influence of past updates", shapes.parameters
    assert name not in stages(0)
    found = stages(3)
    assert found[name].peak == found["influence of sequences"].peak + 12 * n
    assert name not in {s.name for s in Measuring(shapes, _past(3)).stages("audit")}


def _past(past):
    return Sizes(Batch(8, 4, 3), Batch(6, 4, 3), past=past)


def test_the_least_plan_fits_a_byte_more_and_not_a_byte_less(shapes):
    sizes = Sizes(Batch(8, 4, 3), Batch(6, 4, 3))
    peak = least("influence", "step_4", shapes, sizes, 0).largest.peak
    plan = least("influence", "step_4", shapes, sizes, 0)
    assert plan.peak == peak + plan.libraries
    assert not plan.fits


def test_memory_is_given_with_its_unit():
    assert bytes_of("16GB") == 16 * 10**9
    assert bytes_of("1.5 GiB") == 3 * 2**29
    for wrong in ("16", "GB", "-1GB", "0GB", "1e3GB"):
        with pytest.raises(ValueError, match="is not a size: write 16GB"):
            bytes_of(wrong)


def test_kept_files_are_paths_of_the_checkpoint(shapes, tiny):
    assert shapes.folder == Path(tiny / "step_4")
    assert shapes.source == str(tiny / "base")
