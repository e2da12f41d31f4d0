"""What `measure` refuses, `check` says, for every damage that the tests of files know."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.system.errors import IsentropeError
from isentrope.system.files import write_manifest
from isentrope.verbs.check import check
from tests.checkpoint.record.test_contract_edits import VALUES
from tests.test_hostile_files import PLACES
from tests.tiny_checkpoint import as_made_elsewhere, copied, edit_json, settings
from tests.training import runs
from tests.verbs.test_damaged_checkpoints import DAMAGE, FILES, SETTINGS
from tests.verbs.test_stated_steps import STATES

REFUSALS = (IsentropeError, ValueError, FileNotFoundError)


def checked(config):
    """Whether a checkpoint passes `check`."""
    try:
        (findings,) = check(config).values()
    except REFUSALS:
        return False
    return all(finding.passed is not False for finding in findings)


def measured(config):
    try:
        return measure(config).results[0]
    except REFUSALS:
        return None


def require_agreement(content, out):
    """`check` says of a configuration what `measure` does; a warning counts as said."""
    config = load_config({**content, "output": {"log_level": "ERROR"}})
    into = load_config({**content, "output": {"directory": str(out)}})
    passed, result = checked(config), measured(into)
    if result is None:
        assert not passed
    else:
        assert passed or result.warnings
    return passed


def of_setting(key, value):
    return lambda folder: edit_json(folder / "step_4" / "adapter_config.json", **{key: value})


def of_file(name, text):
    def damage(folder):
        (folder / name if "/" in name else folder / "step_4" / name).write_text(text)

    return damage


def of_optimizer(change):
    def damage(folder):
        path = folder / "step_4" / "optimizer.pt"
        saved = torch.load(path, weights_only=True)
        change(saved)
        torch.save(saved, path)

    return damage


def of_place(place, kind):
    def damage(folder):
        file = folder / place
        file.unlink(missing_ok=True)
        os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")

    return damage


def flipped(name):
    def damage(folder):
        for made in ("base", "step_4"):
            write_manifest(folder / made)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 4
        (folder / name).write_bytes(content)

    return damage


def whole_numbers(folder):
    path = folder / "step_4" / "adapter_model.safetensors"
    save_file({k: v.to(torch.int8) for k, v in load_file(path).items()}, path)


def without_a_matrix(folder):
    path = folder / "base" / "model.safetensors"
    tensors = load_file(path)
    name = next(key for key in tensors if "q_proj" in key)
    save_file({k: v for k, v in tensors.items() if k != name}, path, {"format": "pt"})


TINY = {
    "none": lambda _: None,
    **{f"{key} {value}": of_setting(key, value) for key, value in SETTINGS},
    **{f"{name} {text[:9]}": of_file(name, text) for name, text in FILES},
    **{f"state {i} {words}": of_optimizer(change) for i, (change, words) in enumerate(DAMAGE)},
    "rate 0": of_optimizer(lambda saved: saved["param_groups"][0].update(lr=0.0)),
    **{
        f"{place} {kind}": of_place(place, kind) for place in PLACES for kind in ("pipe", "endless")
    },
    **{
        f"{name} flipped": flipped(name)
        for name in ("step_4/optimizer.pt", "step_4/adapter_model.safetensors", "base/config.json")
    },
    "adapter of whole numbers": whole_numbers,
    "base without a matrix": without_a_matrix,
}
FEW = ("none", "rate 0", "r 2", "step_4/optimizer.pt flipped", "base without a matrix")


def rows(names, few):
    return [n if n in few else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", rows(TINY, FEW))
def test_check_and_measure_agree_on_a_damaged_checkpoint(tiny, tmp_path, name):
    folder = copied(tiny, tmp_path)
    TINY[name](folder)
    content = settings(folder, estimator={"eta_list": None})
    passed = require_agreement(content, tmp_path / "out")
    assert passed == (name == "none")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps, each saved."""
    training = {"steps": 2, "save_every": 1}  # by difficulty
    return runs.trained(tmp_path_factory.mktemp("run"), training=training, **runs.UNPROBED).parent


def state(step):
    return f"run/training_state/step_{step}"


def other_update(folder):
    shutil.rmtree(folder / state(1) / "next_update")
    shutil.copytree(folder / state(0) / "next_update", folder / state(1) / "next_update")


def update_without(name):
    return lambda folder: (folder / state(1) / "next_update" / name).unlink()


def update_with(name):
    return lambda folder: (folder / state(1) / "next_update" / name).write_text("{}")


def file_of_another_step(name):
    def damage(folder):
        shutil.copy(folder / state(2) / name, folder / state(1) / name)
        (folder / state(1) / "manifest.json").unlink()
        write_manifest(folder / state(1))

    return damage


def without_pass_rates(folder):
    path = as_made_elsewhere(folder / state(1)) / "isentrope_state.json"
    content = json.loads(path.read_text())
    content["prompt_sampler"]["seen"] = {}
    path.write_text(json.dumps(content))


def of_contract(key, value):
    def damage(folder):
        edit_json(as_made_elsewhere(folder / state(1)) / "contract.json", **{key: value})

    return damage


RUN = {
    "none": lambda _: None,
    "next_update of another step": other_update,
    "no update.json": update_without("update.json"),
    "no rollouts": update_without("rollouts.parquet"),
    "no manifest of next_update": update_without("manifest.json"),
    "another update.json": update_with("update.json"),
    "no pass rates": without_pass_rates,
    "other end tokens": of_contract("eos_token_ids", [5]),
    "another objective": of_contract("objective", "grpo"),
    **{f"{name} of another step": file_of_another_step(name) for name in STATES},
    **{f"{key} {value}": of_contract(key, value) for key in VALUES for value in VALUES[key][:1]},
}
FEW_OF_RUN = (
    "none",
    "next_update of another step",
    "no update.json",
    "no pass rates",
    "other end tokens",
)


@pytest.mark.parametrize("name", rows(RUN, FEW_OF_RUN))
def test_check_and_measure_agree_on_a_damaged_checkpoint_of_a_run(run, tmp_path, name):
    folder = shutil.copytree(run, tmp_path / "copy")
    RUN[name](folder)
    batch = {"B_U": 4, "E_split": "train", "U_weighting": "difficulty"}
    content = runs.measuring(str(folder / state(1)), run / "prompts.jsonl", batch)
    passed = require_agreement(content, tmp_path / "out")
    assert passed == (name == "none")
