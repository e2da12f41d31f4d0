import pytest
import torch
import yaml

from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.planning.plan import DoesNotFitError
from isentrope.training.trainer import EntropyGRPOTrainer
from isentrope.verbs.train import resume, train
from tests.training import runs

MORE = ["training.steps=3"]
SHORT = {"training": {"steps": 2, "save_every": 1}}


def config(folder, *changes, **sections):
    return load_config(runs.settings(folder, **(SHORT | sections)), changes, TrainConfig)


def test_one_file_of_both_splits_is_said_and_tensorboard_has_a_folder(tmp_path, caplog):
    folder = train(config(tmp_path, "output.report_to=[tensorboard]", "training.steps=1"))
    assert "prompts that are trained on" in caplog.text
    assert list((folder / "tensorboard").glob("events*"))


def test_a_run_goes_on_with_more_steps(tmp_path):
    folder = train(config(tmp_path))
    before = (folder / "logs" / "metrics.jsonl").read_bytes()
    assert resume(folder) == folder  # it has done its steps
    assert (folder / "logs" / "metrics.jsonl").read_bytes() == before
    resume(folder, ["training.steps=3"])
    assert yaml.safe_load((folder / "config.yaml").read_text())["training"]["steps"] == 3
    longer = train(config(tmp_path, "training.steps=3", f"output.directory={tmp_path / 'long'}"))
    name = "training_state/step_3/adapter_model.safetensors"
    assert (folder / name).read_bytes() == (longer / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["trainer.top_k=50"], r"trainer\.top_k .*filter"),
        (["trainer.learning_rate=1"], r"trainer\.learning_rate .*training\.learning_rate"),
        (["trainer.num_iteration=2"], r"Unknown key 'trainer\.num_iteration'.*'num_iterations'"),
        (["trainer.num_iterations=2"], r"save_every=1 .*trainer\.num_iter"),
        (["training.micro_batch=3"], r"micro_batch=3 counts sequences .*prompts_per_step=4"),
        (["trainer.scale_rewards=batch"], r"scale_rewards .*none or group"),
        (["training.normaliser=longest", "trainer.loss_type=grpo"], "goes with trainer.loss_type"),
    ],
)
def test_settings_that_do_not_fit_are_said_before_anything_is_made(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        train(config(tmp_path, *changes))
    assert not (tmp_path / "run").exists()


def test_a_full_memory_names_the_knob(tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(EntropyGRPOTrainer, "train", full)
    with pytest.raises(DoesNotFitError, match=r"memory is full .*training\.micro_batch \(now 16"):
        train(config(tmp_path))


def test_a_run_that_stops_says_what_is_kept(tmp_path, monkeypatch, caplog):
    plain = EntropyGRPOTrainer.training_step

    def breaks(self, *args):
        if self.state.global_step == 1:
            raise ValueError("the reward server is gone")
        return plain(self, *args)

    monkeypatch.setattr(EntropyGRPOTrainer, "training_step", breaks)
    with pytest.raises(ValueError, match="server is gone"):
        train(config(tmp_path))
    assert "Nothing before" in caplog.text
    assert "step_1" in caplog.text
