"""A checkpoint whose files are not as they were written is refused by the name of the file."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from isentrope import Policy
from isentrope.system.errors import FileError
from isentrope.system.files import write_manifest
from isentrope.update.optimizer_state import load_optimizer_state
from tests.tiny_checkpoint import copied, edit_json


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """A checkpoint and its base as isentrope publishes them."""
    folder = copied(tiny, tmp_path_factory.mktemp("made"))
    for name in ("base", "step_4"):
        write_manifest(folder / name)
    return folder


@pytest.fixture
def elsewhere(tiny, tmp_path):
    """The same without manifests."""
    return copied(tiny, tmp_path)


def test_a_flipped_bit_in_any_file_is_refused_before_anything_is_loaded(made):
    files = [p for name in ("step_4", "base") for p in (made / name).iterdir()]
    assert len(files) > 8
    for path in files:
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 4
        path.write_bytes(bad)
        with pytest.raises(FileError, match=str(path.parent)):
            Policy.from_checkpoint(made / "step_4", temperature=1.0)
        path.write_bytes(good)
    assert Policy.from_checkpoint(made / "step_4", temperature=1.0).names


def test_without_verification_the_checkpoint_is_read_as_it_is(made, tmp_path):
    shutil.copytree(made / "step_4", tmp_path / "step_4")
    (tmp_path / "step_4" / "notes.txt").write_text("x")
    with pytest.raises(FileError, match=r"notes\.txt was added"):
        Policy.from_checkpoint(tmp_path / "step_4", temperature=1.0)
    assert Policy.from_checkpoint(tmp_path / "step_4", temperature=1.0, verify=False).names


SETTINGS = [
    ("r", "2"),
    ("r", None),
    ("peft_type", 3),
    ("peft_type", "NO_SUCH"),
    ("target_modules", 7),
    ("base_model_name_or_path", []),
    ("lora_alpha", "x"),
    ("layer_replication", 5),
]


@pytest.mark.parametrize(("key", "value"), SETTINGS)
def test_adapter_settings_of_another_type_are_named(elsewhere, key, value):
    edit_json(elsewhere / "step_4" / "adapter_config.json", **{key: value})
    with pytest.raises(FileError, match="step_4"):
        Policy.from_checkpoint(elsewhere / "step_4", temperature=1.0)


FILES = [
    ("adapter_config.json", "[]"),
    ("adapter_config.json", "{"),
    ("base/config.json", '{"model_type": "qwen2", "hidden_size": "x"}'),
    ("base/config.json", "{}"),
    ("tokenizer_config.json", "[]"),
    ("tokenizer.json", "{}"),
]


@pytest.mark.parametrize(("name", "text"), FILES)
def test_files_that_libraries_read_are_named_by_their_folder(elsewhere, name, text):
    path = elsewhere / name if "/" in name else elsewhere / "step_4" / name
    path.write_text(text)
    with pytest.raises(FileError, match=path.parent.name):
        Policy.from_checkpoint(elsewhere / "step_4", temperature=1.0)


def test_weights_that_are_missing_in_the_base_are_not_made_up(elsewhere):
    path = elsewhere / "base" / "model.safetensors"
    tensors = load_file(path)
    name = next(key for key in tensors if "q_proj" in key)
    save_file({k: v for k, v in tensors.items() if k != name}, path, {"format": "pt"})
    with pytest.raises(FileError, match="has no weights for 1 tensors"):
        Policy.from_checkpoint(elsewhere / "step_4", temperature=1.0)


def test_an_adapter_of_whole_numbers_is_refused(elsewhere):
    path = elsewhere / "step_4" / "adapter_model.safetensors"
    save_file({k: v.to(torch.int8) for k, v in load_file(path).items()}, path)
    with pytest.raises(FileError, match=r"adapter_model\.safetensors: .* is of type I8"):
        Policy.from_checkpoint(elsewhere / "step_4", temperature=1.0)


def _group(key, value):
    return lambda saved: saved["param_groups"][0].update({key: value})


def _moment(key, change):
    def damage(saved):
        state = saved["state"][0]
        state[key] = change(state[key])

    return damage


DAMAGE = [
    (_group("lr", -1.0), "lr of param group 0"),
    (_group("lr", float("inf")), "lr of param group 0"),
    (_group("lr", "x"), "lr of param group 0"),
    (lambda saved: saved["param_groups"][0].pop("lr"), "no learning rate"),
    (lambda saved: saved["param_groups"][0].pop("params"), "no list of parameters|params"),
    (_group("betas", (2.0, 2.0)), "betas of param group 0"),
    (_group("betas", [0.9]), "betas of param group 0"),
    (_group("eps", -1.0), "eps of param group 0"),
    (_group("weight_decay", True), "weight_decay of param group 0"),
    (_group("maximize", 0), "maximize of param group 0"),
    (_group("differentiable", None), "differentiable of param group 0"),
    (_moment("exp_avg_sq", lambda x: -x - 1), "negative"),
    (_moment("exp_avg_sq", lambda x: x + float("inf")), "not finite"),
    (_moment("exp_avg", lambda x: x * float("nan")), "not finite"),
    (_moment("exp_avg", lambda x: x.int()), "not plain floating point"),
    (_moment("exp_avg", lambda x: x > 0), "not plain floating point"),
    (_moment("exp_avg", lambda x: 3.0), ""),
    (_moment("step", lambda x: -x), "step of parameter"),
    (_moment("step", lambda x: x + 0.5), "step of parameter"),
]


@pytest.fixture(scope="module")
def policy(tiny):
    return Policy.from_checkpoint(tiny / "step_4", temperature=1.0)


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_optimizer_states_that_no_optimizer_writes_are_named(tiny, tmp_path, policy, damage, words):
    for name in ("optimizer.pt", "parameter_names.json"):
        shutil.copy(tiny / "step_4" / name, tmp_path)
    saved = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    damage(saved)
    torch.save(saved, tmp_path / "optimizer.pt")
    with pytest.raises(FileError, match=rf"optimizer\.pt.*({words})"):
        load_optimizer_state(policy, tmp_path)
