"""The events of a resumed run, read back: each step stands there once."""

import shutil

import pytest

from isentrope.config.io import load_config
from isentrope.config.train import SftConfig
from isentrope.verbs.sft import resume_sft, sft
from isentrope.verbs.train import resume
from tests.adapters import save_base_model
from tests.training import runs
from tests.training.conftest import small_policy

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def steps(run, name):
    events = accumulator.EventAccumulator(str(run / "tensorboard"), {"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars(name)]


def test_steps_that_a_resumed_run_takes_again_stand_once(tmp_path):
    output = {"directory": str(tmp_path / "run"), "report_to": ["tensorboard"]}
    training = {"steps": 4, "save_every": 2}
    run = runs.trained(tmp_path, training=training, output=output, **runs.UNPROBED)
    assert steps(run, "train/reward") == [1, 2, 3, 4]
    shutil.rmtree(run / "training_state" / "step_4")
    resume(run, ["training.steps=6"])
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert steps(run, "train/reward") == [1, 2, 3, 4, 5, 6]


def test_steps_that_a_resumed_fine_tuning_takes_again_stand_once(tmp_path):
    save_base_model(small_policy(), tmp_path / "base")
    content = {
        "model": {"path": str(tmp_path / "base"), "lora_rank": 2, "lora_alpha": 4},
        "data": {"dataset_name": "addition"},
        "fine_tuning": {"steps": 4, "batch_size": 6, "save_every": 2},
        "output": {"directory": str(tmp_path / "run"), "report_to": ["tensorboard"]},
    }
    sft(load_config(content, (), SftConfig))
    for name in ("model", "training_state/step_4"):
        shutil.rmtree(tmp_path / "run" / name)
    resume_sft(tmp_path / "run")
    assert steps(tmp_path / "run", "train/loss") == [1, 2, 3, 4]
