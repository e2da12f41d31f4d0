"""What `train --resume` refuses to go on from."""

import json
import shutil

import pytest

from isentrope.pipelines.train import resume, train
from isentrope.training.divergence import TrainingDivergedError
from tests.pipelines.test_train import MORE, config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two steps, with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("finished")
    train(config(folder))
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished / "run", tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "contract.json",
        "isentrope_state.json",
        "adapter_model.safetensors",
    ],
)
@pytest.mark.parametrize("emptied", [False, True])
def test_a_checkpoint_without_one_of_its_files_is_refused_by_the_files_name(run, name, emptied):
    newest, metrics = run / "training_state" / "step_2", (run / "logs/metrics.jsonl").read_bytes()
    (newest / name).unlink()
    if emptied:
        (newest / name).touch()
    for changes in ([], MORE):
        with pytest.raises(ValueError, match=rf"step_2 .*{name}"):
            resume(run, changes)
    assert (run / "logs/metrics.jsonl").read_bytes() == metrics


def test_an_emptied_step_folder_is_no_checkpoint(run):
    (run / "training_state" / "step_9").mkdir()
    with pytest.raises(ValueError, match="step_9 "):
        resume(run)


def test_a_step_under_another_steps_name_is_refused(run):
    shutil.copytree(run / "training_state" / "step_1", run / "training_state" / "step_6")
    with pytest.raises(ValueError, match=r"step_6 .*step 1 "):
        resume(run)


def test_every_process_of_the_run_needs_its_random_state(run):
    contract = run / "training_state" / "step_2" / "contract.json"
    contract.write_text(json.dumps(json.loads(contract.read_text()) | {"world_size": 2}))
    with pytest.raises(ValueError, match=r"step_2 .*rng_state_0\.pth"):
        resume(run)


def test_a_run_whose_numbers_overflow_ends_and_keeps_what_was_good(tmp_path, caplog):
    with pytest.raises(TrainingDivergedError, match="step 1, "):
        train(config(tmp_path, "training.learning_rate=1e308"))
    assert not list((tmp_path / "run" / "training_state").glob("step_*"))
    assert "--resume" not in caplog.text
