"""The checkpoint before the first step: runs begin at it, resume from it, and it is measured."""

import json
import shutil

import pytest

from isentrope import Policy
from isentrope.checkpoint.record.next_update import read_control, read_next_update
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.nouns.vectors import axpy, norm
from isentrope.system.errors import FileError
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import compute_step
from isentrope.verbs.check import check
from isentrope.verbs.train import branch, resume
from tests.training import runs

HOLD = {
    "name": "budget",
    "target": {"kind": "hold"},
    "options": {"size": 32, "every": 1, "average": 2},
}
SECTIONS = {
    "training": {"steps": 2, "save_every": 1},
    "noise_scale": {"enabled": True},
    "entropy_probe": {"every": 1, "size": 4, "log_every": 1},
    "control": HOLD,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps under a control with a state, all checkpoints kept."""
    return runs.trained(tmp_path_factory.mktemp("run"), **SECTIONS)


def at(folder, step=0):
    return folder / "training_state" / f"step_{step}"


def weights(folder, step=2):
    return (at(folder, step) / "adapter_model.safetensors").read_bytes()


def metrics(folder):
    return (folder / "logs" / "metrics.jsonl").read_text()


def test_a_branch_from_step_0_is_its_parent(run, tmp_path):
    new = branch(at(run), [f"output.directory={tmp_path / 'new'}"])
    assert metrics(new) == metrics(run)
    assert weights(new) == weights(run)


def test_a_run_that_was_killed_in_its_first_step_resumes_from_step_0(run, tmp_path):
    killed = tmp_path / "killed"
    shutil.copytree(run, killed)
    for step in (1, 2):
        shutil.rmtree(at(killed, step))
    resume(killed)
    assert metrics(killed) == metrics(run)
    assert weights(killed) == weights(run)


def test_another_draw_from_step_0_is_a_run_of_that_draw(run, tmp_path):
    new = branch(at(run), [f"output.directory={tmp_path / 'new'}", "training.repeat=1"])
    other = SECTIONS | {"training": SECTIONS["training"] | {"repeat": 1}}
    again = runs.trained(tmp_path / "again", **other)
    assert metrics(new) == metrics(again) != metrics(run)


def test_the_first_step_is_rebuilt_from_what_was_saved_before_it(run):
    U, update = read_next_update(at(run))
    policy = Policy.from_checkpoint(at(run), precision="float64")
    clip = update["max_grad_norm"]
    step = compute_step(policy, U, at(run), objective="recorded", max_grad_norm=clip)
    assert not any(x.any() for x in step.components["momentum"].values())
    assert any("first step" in sentence for sentence in step.warnings)
    eta = update["learning_rate"]
    after = Policy.from_checkpoint(at(run, 1), precision="float64").theta
    moved = {name: (after[name] - p) / eta for name, p in policy.theta.items()}
    control = read_control(at(run))  # a part of the step that was taken
    whole = step.direction if control is None else step.corrected(control).direction
    assert norm(axpy(-1.0, moved, whole)) < 1e-3 * norm(moved)


def test_check_and_measure_work_at_step_0(run, tmp_path):
    output = {"directory": str(tmp_path / "run"), "log_level": "WARNING"}
    first_order = {"eta_list": [1e-3], "order": 1}
    prompts = run.parent / "prompts.jsonl"
    content = runs.measuring(str(at(run)), prompts, estimator=first_order, output=output)
    (findings,) = check(load_config(content)).values()
    (adapter,) = [f for f in findings if f.name == "adapter loaded"]
    assert adapter.passed
    assert "as before the first step" in adapter.detail
    (result,) = measure(load_config(content)).results
    assert result.budget["momentum"].value == 0
    assert result.first_order.value != 0
    assert any("first step" in sentence for sentence in result.warnings)


def test_an_empty_state_is_taken_from_step_0_only(run, tmp_path):
    policy = Policy.from_checkpoint(at(run))
    assert load_optimizer_state(policy, at(run)).moments
    copied = tmp_path / "step_0"
    shutil.copytree(at(run), copied)
    for name in ("manifest.json", "isentrope.json"):
        (copied / name).unlink()
    state = json.loads((copied / "trainer_state.json").read_text())
    (copied / "trainer_state.json").write_text(json.dumps(state | {"global_step": 7}))
    with pytest.raises(FileError, match="empty optimizer state"):
        load_optimizer_state(policy, copied)
    (copied / "trainer_state.json").unlink()
    with pytest.raises(FileError, match="empty optimizer state"):
        load_optimizer_state(policy, copied)


def test_step_0_goes_like_any_checkpoint_that_is_not_kept(tmp_path):
    options = {"steps": 1, "save_every": 1, "keep_last": 1}
    pruned = runs.trained(tmp_path / "pruned", training=options)
    assert [p.name for p in (pruned / "training_state").iterdir()] == ["step_1"]
