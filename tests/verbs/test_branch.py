"""A run that begins at a checkpoint of another: the same bit for bit, or settings changed."""

import json
import shutil

import pytest
import torch
import yaml
from typer.testing import CliRunner

from isentrope.cli.main import app
from isentrope.config.io import ConfigError
from isentrope.system.errors import FileError
from isentrope.verbs.train import branch, resume
from tests.training import runs

SECTIONS = {
    "training": {"steps": 4, "save_every": 2},
    "trainer": {"lr_scheduler_type": "linear", "weight_decay": 0.1},
    "noise_scale": {"enabled": True},
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of four steps with checkpoints at 2 and 4, under a schedule with an end."""
    return runs.trained(tmp_path_factory.mktemp("p"), **SECTIONS)


def at(parent, step=2):
    return parent / "training_state" / f"step_{step}"


def test_a_branch_with_nothing_changed_is_its_parent(parent, tmp_path):
    new = branch(at(parent), [f"output.directory={tmp_path / 'new'}"])
    assert runs.lines(new) == runs.lines(parent)
    for name in ("adapter_model.safetensors", "isentrope_state.json"):
        assert (at(new, 4) / name).read_bytes() == (at(parent, 4) / name).read_bytes()
    states = [torch.load(at(x, 4) / "optimizer.pt", weights_only=True) for x in (new, parent)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    record = json.loads((new / "branch.json").read_text())
    assert (record["step"], record["changed"]) == (2, {})
    assert json.loads((at(new, 4) / "contract.json").read_text())["parent"] == record


CHANGES = {
    "training.learning_rate": 2e-2,
    "trainer.lr_scheduler_type": "constant",
    "control.name": "clip_cov",
    "training.prompts_per_step": 8,
    "trainer.weight_decay": 0.3,
    "entropy_probe.every": 1,
}
SLOWLY = [pytest.param(key, marks=pytest.mark.slow) for key in list(CHANGES)[3:]]


@pytest.mark.parametrize("key", [*list(CHANGES)[:3], *SLOWLY])
def test_settings_may_change(parent, tmp_path, key):
    new = branch(at(parent), [f"output.directory={tmp_path / 'new'}", f"{key}={CHANGES[key]}"])
    assert runs.lines(new)[:2] == runs.lines(parent)[:2]
    assert runs.lines(new)[2:] != runs.lines(parent)[2:]
    section, name = key.split(".")
    assert yaml.safe_load((new / "config.yaml").read_text())[section][name] == CHANGES[key]
    before = json.loads((new / "branch.json").read_text())["changed"]
    assert before[key][1] == CHANGES[key]
    rates = [x["learning_rate"] for x in runs.lines(new)]
    assert rates[1] == runs.lines(parent)[1]["learning_rate"]
    expected = {"training.learning_rate": 1e-2, "trainer.lr_scheduler_type": 1e-2}
    assert rates[2] == pytest.approx(expected.get(key, 5e-3))  # 2e-2 and 1e-2, halfway down


def test_a_branch_is_resumed_like_any_run(parent, tmp_path):
    changes = ["training.learning_rate=2e-2"]
    whole = branch(at(parent), [f"output.directory={tmp_path / 'whole'}", *changes])
    short = tmp_path / "short"
    shutil.copytree(whole, short)
    shutil.rmtree(at(short, 4))  # as a kill after the first step leaves it
    resume(short)
    assert runs.lines(short) == runs.lines(whole)
    text = (whole / "config.yaml").read_text()
    (whole / "config.yaml").write_text(text.replace("learning_rate: 0.02", "learning_rate: 1"))
    with pytest.raises(ConfigError, match=r"training\.learning_rate"):
        resume(whole, ["output.log_level=ERROR"])


def test_what_the_states_depend_on_is_fixed(parent, tmp_path):
    where = f"output.directory={tmp_path / 'new'}"
    for change in ("training.seed=3", "model.lora_rank=4", "trainer.optim=sgd"):
        with pytest.raises(ConfigError, match=change.split("=")[0]):
            branch(at(parent), [where, change])
    assert not (tmp_path / "new" / "config.yaml").exists()


def test_bad_places_are_said_in_a_sentence(parent, tmp_path):
    where = f"output.directory={tmp_path / 'new'}"
    with pytest.raises(ValueError, match="--out"):
        branch(at(parent))
    with pytest.raises(FileNotFoundError, match="training_state/step_N"):
        branch(parent, [where])
    copied = tmp_path / "copied"
    shutil.copytree(parent, copied)
    (at(copied) / "manifest.json").unlink()
    (at(copied) / "isentrope.json").unlink()
    (at(copied) / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"optimizer\.pt"):
        branch(at(copied), [where])
    with pytest.raises(FileError, match="Nothing may be written"):
        branch(at(parent), [f"output.directory={at(parent) / 'new'}"])
    with pytest.raises(FileExistsError, match="holds a run"):
        branch(at(parent), [f"output.directory={parent}"])
    with pytest.raises(FileNotFoundError, match="--from"):
        resume(at(parent))


def test_the_command_line_takes_one_start(parent, tmp_path):
    call = CliRunner().invoke
    both = call(app, ["train", "a.yaml", "--from", str(at(parent))])
    assert both.exit_code != 0
    arguments = ["train", "--from", str(at(parent, 4)), "--out", str(tmp_path / "new")]
    done = call(app, [*arguments, "--set", "training.steps=5"])
    assert done.exit_code == 0, done.output
    assert len(runs.lines(tmp_path / "new")) == 5
