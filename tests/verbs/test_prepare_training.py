"""What a training is refused before it begins."""

import logging

import pytest
import torch

from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.training.run_files import RunFiles
from isentrope.verbs import prepare_training
from tests.training import runs


@pytest.mark.parametrize(("trainer", "device"), [({}, "cuda"), ({"use_cpu": True}, "cpu")])
def test_free_memory_is_that_of_the_device_that_trains(tmp_path, monkeypatch, trainer, device):
    config = load_config(runs.settings(tmp_path, trainer=trainer), root=TrainConfig)
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        prepare_training, "require_room_to_train", lambda model, where: asked.append(where)
    )
    monkeypatch.setattr(
        prepare_training, "warn_of_training", lambda *arguments: asked.append(arguments[-1])
    )
    prepare_training.begin_training(config, RunFiles(tmp_path), 0, [0], "choose another disk")
    assert asked == [device, device]


def test_vllm_that_is_not_there_is_refused_first(tmp_path):
    config = load_config(runs.settings(tmp_path, trainer={"use_vllm": True}), root=TrainConfig)
    with pytest.raises(ConfigError) as refusal:
        prepare_training.prepare_training(config, RunFiles(tmp_path))
    assert "trainer.use_vllm=true, and vLLM is not installed" in str(refusal.value)


def test_a_run_that_vllm_draws_for_says_what_resuming_does_not_promise(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(prepare_training, "grpo_options", None)  # what comes next
    config = load_config(runs.settings(tmp_path, trainer={"use_vllm": True}), root=TrainConfig)
    for checkpoint, warnings in ((None, 0), (tmp_path / "step_4", 1)):
        with caplog.at_level(logging.WARNING), pytest.raises(TypeError):
            prepare_training.prepare_training(config, RunFiles(tmp_path), checkpoint)
        assert len(caplog.records) == warnings
    assert "not those that it would have taken without the interruption" in caplog.text
