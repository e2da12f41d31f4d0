"""What a training is refused before it begins."""

import pytest
import torch

from isentrope.config.io import load_config
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
    prepare_training.begin_training(config, RunFiles(tmp_path), 0, [0], "choose another disk")
    assert asked == [device]
