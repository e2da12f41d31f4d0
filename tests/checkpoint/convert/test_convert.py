"""Checkpoints of other trainers: gathered, and the next step is the one that training took."""

import json
import math
import shutil

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM

import isentrope as ise
from isentrope import Rollouts
from isentrope.checkpoint.convert.write import convert
from isentrope.models.checkpoint import load_tokenizer
from isentrope.system.file_contents import read_torch_as_data
from isentrope.system.inert import Inert
from isentrope.system.manifest import verify
from tests.checkpoint.convert.sharded_run import RATE, SAVE
from tests.tiny_checkpoint import as_made_elsewhere, make_checkpoint, weighted_batch
from tests.torchrun import torchrun
from tests.training import runs


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with base/ and a batch of weighted tokens."""
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder)
    weighted_batch(load_tokenizer(folder / "base")).save(folder / "U.parquet")
    return folder


def tie_weights(folder):
    """Make the model of a folder one with one embedding for both ends."""
    as_made_elsewhere(folder)
    config = AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = True
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def sharded(base, folder, layout):
    """The checkpoint that two processes leave in a layout."""
    for name in ("base", "U.parquet"):
        (folder / name).symlink_to(base / name)
    if layout == "tied":
        (folder / "base").unlink()
        shutil.copytree(base / "base", folder / "base")
        tie_weights(folder / "base")
    for _ in range(3):  # gloo's threads may abort a process that has ended its work
        done = torchrun(2, "tests.checkpoint.convert.sharded_run", layout, folder, succeeds=False)
        if done.returncode == 0:
            return folder / "checkpoint"
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    raise AssertionError(done.stderr[-3000:])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [*SAVE, "adapter", "tied"])
def test_the_next_step_is_the_one_that_training_took(base, tmp_path, layout):
    source = sharded(base, tmp_path, layout)
    model = tmp_path / ("adapter" if layout == "adapter" else "base")
    made = convert(source, tmp_path / "out", model)
    verify(made.folder)
    policy = ise.Policy.from_checkpoint(made.folder, precision="float64", temperature=1.0)
    U = Rollouts.load(tmp_path / "U.parquet")
    step = ise.optimizer_step(policy, U, made.folder, objective="recorded", max_grad_norm=None)
    assert step.matched_by == "names"
    whole = torch.load(tmp_path / "whole.pt")
    after, before = whole["after"], whole["before"]
    taken = {n: (after[n].double() - before[n].double()) / RATE for n in step.direction}
    assert runs.relative(step.direction, taken) < 1e-5


def state_of(base):
    """Weights of the base, and a state of AdamW with names and two groups."""
    weights = load_file(base / "base" / "model.safetensors")
    rng = torch.Generator().manual_seed(1)
    state = {
        name: {
            "step": torch.tensor(3.0),
            "exp_avg": torch.randn(x.shape, generator=rng),
            "exp_avg_sq": torch.rand(x.shape, generator=rng),
        }
        for name, x in weights.items()
    }
    settings = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}
    groups = [
        settings | {"weight_decay": 0.1, "params": [n for n, x in weights.items() if x.dim() > 1]},
        settings | {"weight_decay": 0.0, "params": [n for n, x in weights.items() if x.dim() < 2]},
    ]
    return weights, {"state": state, "param_groups": groups}


def same(made, weights, optimizer):
    """Whether a converted checkpoint holds these tensors."""
    found = load_file(made.folder / "model.safetensors")
    saved = torch.load(made.folder / "optimizer.pt", weights_only=True)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    for name, state in optimizer["state"].items():
        assert all(torch.equal(saved["state"][name][key], state[key]) for key in state)
    assert [g["params"] for g in saved["param_groups"]] == [
        g["params"] for g in optimizer["param_groups"]
    ]
    assert [g["weight_decay"] for g in saved["param_groups"]] == [0.1, 0.0]


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_checkpoint_of_torch_distributed_is_gathered(base, tmp_path):
    weights, optimizer = state_of(base)
    wrapped = {f"_orig_mod.{name}": x for name, x in weights.items()}
    torch.save({"app": {"model": wrapped, "optim": optimizer}, "step": 3}, tmp_path / "one.pt")
    torch_save_to_dcp(tmp_path / "one.pt", tmp_path / "dcp")
    made = convert(tmp_path / "dcp", tmp_path / "out", base / "base")
    assert (made.layout, made.parameters) == ("torch.distributed.checkpoint", len(weights))
    same(made, weights, optimizer)
    policy = ise.Policy.from_checkpoint(made.folder)
    assert policy.tokenizer.encode("1+2=")


class Scaler:
    """A class of the trainer, saved beside the tensors."""


def zero(base, folder, stage, count=2, padding=0):
    """A ZeRO checkpoint as DeepSpeed lays it out, with an object of its own class.

    Each parameter has `padding` numbers behind it, and each vector an attribute.
    """
    weights, optimizer = state_of(base)
    folder = folder / "global_step3"
    folder.mkdir()
    (folder.parent / "latest").write_text("global_step3")
    named = [{n: weights[n].shape for n in g["params"]} for g in optimizer["param_groups"]]

    def parts(of):
        """The parts of all processes, for each param group."""
        split = []
        for shapes in named:
            if stage == 3:
                pieces = [of(n).flatten() for n in shapes]
                each = [math.ceil(len(x) / count) for x in pieces]
                padded = [
                    torch.nn.functional.pad(x, (0, e * count - len(x)))
                    for x, e in zip(pieces, each, strict=True)
                ]
                split.append(
                    [
                        torch.cat(
                            [x[i * e : (i + 1) * e] for x, e in zip(padded, each, strict=True)]
                        )
                        for i in range(count)
                    ]
                )
            else:
                behind = torch.zeros(padding)
                whole = torch.cat([x for n in shapes for x in (of(n).flatten(), behind)])
                split.append(list(whole.chunk(count)))
        for x in (x for of_group in split for x in of_group):
            x.ds_id = 1
        return split

    of_weights = parts(weights.__getitem__)
    moments = {k: parts(lambda n, k=k: optimizer["state"][n][k]) for k in ("exp_avg", "exp_avg_sq")}
    for i in range(count):
        state = {
            k: {"step": torch.tensor(3.0)} | {key: m[k][i] for key, m in moments.items()}
            for k in range(len(named))
        }
        base_state = {
            "state": state,
            "param_groups": [g | {"params": [k]} for k, g in enumerate(optimizer["param_groups"])],
        }
        content = {"loss_scaler": Scaler(), "zero_stage": stage, "partition_count": count}
        if stage == 3:
            content |= {"optimizer_state_dict": base_state}
            content |= {"fp32_flat_groups": [of_weights[k][i] for k in range(len(named))]}
        else:
            content |= {"base_optimizer_state": base_state, "clip_grad": 0.5}
            if padding:
                content["param_alignment_paddings"] = [[padding] * len(g) for g in named]
            content |= {
                "single_partition_of_fp32_groups": [of_weights[k][i] for k in range(len(named))]
            }
        name = f"bf16_zero_pp_rank_{i}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": content, "ds_version": "0.18"}, folder / name)
    module = {n: torch.empty(0) for n in weights} if stage == 3 else dict(weights)
    model = {"module": module, "param_shapes": named, "shared_params": {}, "args": Scaler()}
    model["ds_config"] = {"gradient_clipping": 0.5}
    ranks = range(count) if stage == 3 else (0,)
    for i in ranks:
        prefix = f"zero_pp_rank_{i}_" if stage == 3 else ""
        torch.save(model, folder / f"{prefix}mp_rank_00_model_states.pt")
    return weights, optimizer


@pytest.fixture
def source(tmp_path):
    """An empty folder of a checkpoint."""
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint"


@pytest.mark.parametrize(("stage", "padding"), [(1, 0), (2, 0), (2, 3), (3, 0)])
def test_the_parts_of_zero_are_joined(base, source, tmp_path, stage, padding):
    weights, optimizer = zero(base, source, stage, padding=padding)
    made = convert(source, tmp_path / "out", base / "base")
    assert made.layout == "DeepSpeed ZeRO"
    same(made, weights, optimizer)
    assert ise.Checkpoint(made.folder).settings["estimator.max_grad_norm"].value == 0.5


def test_what_a_trainer_wrote_of_itself_stays(base, source, tmp_path):
    zero(base, source, 2)
    (source / "trainer_state.json").write_text('{"global_step": 7, "max_grad_norm": 2.0}')
    made = convert(source, tmp_path / "out", base / "base")
    state = json.loads((made.folder / "trainer_state.json").read_text())
    assert state == {"global_step": 7, "max_grad_norm": 2.0}


def test_classes_of_the_file_are_not_loaded(tmp_path):
    torch.save({"scaler": Scaler(), "x": torch.ones(2)}, tmp_path / "a.pt")
    content = read_torch_as_data(tmp_path / "a.pt")
    assert isinstance(content["scaler"], Inert)
    assert torch.equal(content["x"], torch.ones(2))


def missing_part(folder):
    next((folder / "global_step3").glob("*rank_1*optim*")).unlink()


def no_names(folder):
    next((folder / "global_step3").glob("*model_states*")).unlink()


def cut(folder):
    file = next((folder / "global_step3").glob("*rank_1*optim*"))
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing_part, "has 1 .*optim_states.pt of 2"),
        (no_names, "has no .*model_states"),
        (cut, "rank_1.* cannot be read"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_written(base, source, tmp_path, damage, words):
    zero(base, source, 2)
    damage(source)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        convert(source, tmp_path / "out", base / "base")
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_is_refused(base, source, tmp_path):
    zero(base, source, 2)
    with pytest.raises(FileNotFoundError, match="give --model"):
        convert(source, tmp_path / "out")
    other = tmp_path / "other"
    as_made_elsewhere(shutil.copytree(base / "base", other))
    text = (other / "config.json").read_text()
    changed = text.replace('"intermediate_size": 32', '"intermediate_size": 48')
    (other / "config.json").write_text(changed)
    with pytest.raises(ValueError, match=r"'model\.layers\..*mlp.* has shape"):
        convert(source, tmp_path / "out", other)


def test_a_folder_of_no_layout_is_refused(base, source, tmp_path):
    with pytest.raises(FileNotFoundError, match="no layout that is converted"):
        convert(source, tmp_path / "out")
    with pytest.raises(ValueError, match=r"needs no conversion: `isentrope check .*base`"):
        convert(base / "base", tmp_path / "out")
    actor = source / "global_step_20" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").touch()
    with pytest.raises(FileNotFoundError) as refused:
        convert(source, tmp_path / "out")
    assert f"isentrope convert {actor} --out OUT" in str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_weights_and_optimizer_are_found_below_a_step_of_nemo(base, tmp_path):
    weights, optimizer = state_of(base)
    policy = tmp_path / "step_3" / "policy"
    for name, content in (("weights", {"model": weights}), ("optimizer", {"optim": optimizer})):
        torch.save(content, tmp_path / name)
        (policy / name).mkdir(parents=True)
        torch_save_to_dcp(tmp_path / name, policy / name)
    same(convert(tmp_path / "step_3", tmp_path / "out", base / "base"), weights, optimizer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tied", [False, True])
def test_the_flat_vectors_of_verl_are_cut_into_parameters(base, tmp_path, tied):
    """One process, whose parts are the whole; several are in test_verl."""
    folder, actor = tmp_path / "global_step_3", tmp_path / "global_step_3" / "actor"
    described = as_made_elsewhere(shutil.copytree(base / "base", actor / "huggingface"))
    config = json.loads((described / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (described / "config.json").write_text(json.dumps(config))
    weights, optimizer = state_of(base)
    expected = {n: s for n, s in optimizer["state"].items() if n != "lm_head.weight" or not tied}
    rest = [n for n in expected if ".layers." not in n]
    units = [rest, *([n for n in expected if f".layers.{k}." in n] for k in range(2))]
    state = {}
    for number, unit in enumerate(units):
        flat = {
            key: torch.cat([*(expected[n][key].flatten() for n in unit), torch.zeros(1)])
            for key in ("exp_avg", "exp_avg_sq")
        }
        state[number] = {"step": torch.tensor(3.0), **flat}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        parts = {n: distribute_tensor(x, mesh, [Shard(0)]) for n, x in weights.items()}
        torch.save(parts, actor / "model_world_size_1_rank_0.pt")
    finally:
        dist.destroy_process_group()
    groups = [{"lr": 1e-3, "params": [0, 1, 2]}]
    torch.save({"state": state, "param_groups": groups}, actor / "optim_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 1}')
    made = convert(folder, tmp_path / "out")
    saved = torch.load(made.folder / "optimizer.pt", weights_only=True)
    assert set(saved["param_groups"][0]["params"]) == saved["state"].keys() == expected.keys()
    for name, of_name in expected.items():
        assert all(torch.equal(saved["state"][name][key], of_name[key]) for key in of_name)
    state[3] = state.pop(2)
    state[4] = state[3]
    torch.save({"state": state, "param_groups": groups}, actor / "optim_world_size_1_rank_0.pt")
    with pytest.raises(ValueError, match=r"4 flat vectors .* 3 layers"):
        convert(folder, tmp_path / "other")
