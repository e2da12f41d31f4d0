"""A checkpoint, its next update, results and evaluations are refused under another one's name."""

import json
import shutil

import pytest
import torch

from isentrope import MeasureResult, Policy, Result
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.models.checkpoint_folder import require_checkpoint
from isentrope.reports.read_run import read_run
from isentrope.system.errors import FileError
from isentrope.system.files import write_manifest
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.verbs.train import branch, resume
from tests.tiny_checkpoint import as_made_elsewhere
from tests.training import runs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of three steps, measured twice at its first two."""
    folder = tmp_path_factory.mktemp("run")
    run = trained(folder)
    paths = [str(at(run, 1)), str(at(run, 2))]
    batch = {"B_E": 6, "repeats": 2, "E_split": "train"}
    output = {"directory": str(run), "log_level": "WARNING"}
    content = runs.measuring(paths, folder / "prompts.jsonl", batch, output=output)
    measure(load_config(content))
    return folder


def trained(folder, seed=0):
    training = {"steps": 3, "save_every": 1, "prompt_weighting": "uniform", "seed": seed}
    return runs.trained(folder, training=training, **runs.UNPROBED)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A run of the same steps by another seed."""
    return trained(tmp_path_factory.mktemp("theirs"), seed=1)


def at(run, step):
    return run / "training_state" / f"step_{step}"


def exchange(one, other):
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made / "run", tmp_path / "run")


def test_checkpoints_under_each_others_names_are_refused(run):
    exchange(at(run, 1), at(run, 2))
    with pytest.raises(FileError, match=r"step 1 by its name, step_1, and of step 2 by trainer_"):
        require_checkpoint(at(run, 1))
    with pytest.raises(FileError, match=r"step 2 by its name"):
        branch(at(run, 2), [f"output.directory={run.parent / 'new'}"])


def test_a_checkpoint_of_another_trainer_is_held_to_its_name_too(run):
    shutil.copytree(as_made_elsewhere(at(run, 2)), run / "checkpoint-2")
    (run / "checkpoint-2" / "contract.json").unlink()
    assert require_checkpoint(run / "checkpoint-2")
    (run / "checkpoint-2").rename(run / "checkpoint-5")
    with pytest.raises(FileError, match=r"checkpoint-5.*global_step"):
        require_checkpoint(run / "checkpoint-5")
    (run / "checkpoint-5").rename(run / "best")
    assert require_checkpoint(run / "best")
    (run / "step_7").symlink_to(run / "best")
    with pytest.raises(FileError, match="step 7"):
        require_checkpoint(run / "step_7")


def test_a_record_of_another_checkpoint_is_refused(run):
    assert read_next_update(at(run, 1))[1]["step"] == 2
    exchange(at(run, 0) / "next_update", at(run, 1) / "next_update")
    with pytest.raises(FileError, match="records step 1, and the step from that checkpoint is 2"):
        read_next_update(at(run, 1))


def test_a_record_of_the_same_step_of_another_run_is_refused(run, theirs):
    shutil.rmtree(at(run, 1) / "next_update")
    shutil.copytree(at(theirs, 1) / "next_update", at(run, 1) / "next_update")
    with pytest.raises(FileError, match="at a checkpoint of this step with other files"):
        read_next_update(at(run, 1))


@pytest.mark.parametrize("other", ["measure_step_2", "measure_step_1_repeat_1"])
def test_results_under_each_others_names_are_refused(run, other):
    folder = run / "measurements"
    assert Result.load(folder / other)
    exchange(folder / "measure_step_1", folder / other)
    with pytest.raises(FileError, match=f"measure_step_1 holds {other} "):
        Result.load(folder / "measure_step_1")
    missing = read_run(run).missing
    assert len([sentence for sentence in missing if "according to its content" in sentence]) == 2


def test_measurements_of_another_run_are_not_reported_as_those_of_this_one(run, theirs, tmp_path):
    other = shutil.copytree(theirs, tmp_path / "other")
    shutil.copytree(run / "measurements", other / "measurements")
    shutil.rmtree(other / "measurements" / "measure_step_1")
    reading = read_run(other)
    assert not reading.all_of(MeasureResult)
    assert any("step_2" in x and "another checkpoint" in x for x in reading.missing)


STATES = {
    "optimizer.pt": "is of step 3, and its optimizer has counted 1 steps",
    "scheduler.pt": r"is of step 3, and its schedule \(scheduler\.pt\) has counted 1 steps",
    "isentrope_state.json": r"step 3 by its name, step_3, and of step 1 by isentrope_state\.json",
    "contract.json": r"step 3 by its name, step_3, and of step 1 by contract\.json",
    "trainer_state.json": r"step 3 by its name, step_3, and of step 1 by trainer_state\.json",
}


@pytest.mark.parametrize("file", STATES)
def test_states_of_another_step_are_refused_after_a_manifest_made_anew(run, file):
    shutil.copy(at(run, 1) / file, at(run, 3) / file)
    (at(run, 3) / "manifest.json").unlink()
    write_manifest(at(run, 3))
    with pytest.raises(FileError, match=STATES[file]):
        resume(run, ["training.steps=4"])


def test_an_optimizer_that_began_anew_elsewhere_is_no_fault(run):
    folder = as_made_elsewhere(at(run, 3))
    shutil.copy(at(run, 2) / "optimizer.pt", folder)
    policy = Policy.from_checkpoint(folder, temperature=1.0)
    with pytest.raises(FileError, match="its optimizer has counted 2 steps"):
        load_optimizer_state(policy, folder)
    for name in ("contract.json", "isentrope_state.json"):
        (folder / name).unlink()
    with pytest.raises(FileError, match="its optimizer has counted 2 steps"):
        load_optimizer_state(policy, folder)
    schedule = torch.load(folder / "scheduler.pt", weights_only=True)
    torch.save(schedule | {"last_epoch": 2}, folder / "scheduler.pt")
    assert load_optimizer_state(policy, folder)
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "trainer_state.json").write_text(json.dumps(state | {"global_step": 1}))
    folder.rename(folder.with_name("checkpoint-1x"))
    with pytest.raises(FileError, match="is of step 1, and its optimizer has counted 2"):
        load_optimizer_state(policy, folder.with_name("checkpoint-1x"))
