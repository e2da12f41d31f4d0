"""What cannot be written is refused before any work is done."""

import shutil
from collections import namedtuple

import pytest

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig, TrainingConfig
from isentrope.results.verbs import MEASURE, NOISE
from isentrope.runs.room import checkpoints_size, folder_name, require_disk, require_writable
from isentrope.system.errors import FileError
from isentrope.verbs.check import check
from isentrope.verbs.loop import run_verb
from isentrope.verbs.train import train
from tests.tiny_checkpoint import settings

Usage = namedtuple("Usage", "total used free")


def full(monkeypatch, free=1000):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**6, 10**6 - free, free))


def test_a_run_whose_checkpoints_do_not_fit_is_refused(tmp_path, monkeypatch):
    full(monkeypatch)
    asked = {"model": {"path": "toy", "lora_rank": 0}, "data": {"dataset_name": "addition"}}
    config = load_config(asked | {"output": {"directory": str(tmp_path / "run")}}, root=TrainConfig)
    with pytest.raises(FileError, match=r"Saving its checkpoints needs about .* 1 kB are free"):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "done", "size"),
    [
        ({"steps": 100, "save_every": 10}, 0, 10 * 120 + 40),  # step 0 has no moments
        ({"steps": 95, "save_every": 10}, 0, 10 * 120 + 40),
        ({"steps": 100, "save_every": 10}, 80, 2 * 120),
        ({"steps": 100, "save_every": 10, "keep_last": 2}, 0, 3 * 120),
        ({"steps": 100, "save_every": 10, "keep_last": 1, "keep_every": 50}, 0, 3 * 120 + 40),
    ],
)
def test_checkpoints_are_counted_as_they_are_kept(options, done, size):
    assert checkpoints_size(TrainingConfig(**options), 40, 10, done) == size


def test_a_folder_is_looked_at_before_work(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"file is a file, not a directory: choose another --out"):
        require_writable(tmp_path / "file" / "run", "--out")
    require_writable(tmp_path / "new" / "run", "--out")
    asked = settings(tiny, output={"directory": str(tmp_path / "file" / "run")})
    with pytest.raises(FileError, match="is a file, not a directory"):
        check(load_config(asked))
    logs = {"output_directory": str(tmp_path / "file")}
    with pytest.raises(FileError, match=r"detailed_logging\.output_directory"):
        run_verb(MEASURE, load_config(settings(tiny, detailed_logging=logs)))


def test_a_noise_scale_of_three_groups_is_refused_before_sampling(tiny):
    with pytest.raises(ValueError, match=r"four prompt groups or more, and .*B_U is 3"):
        run_verb(NOISE, load_config(settings(tiny)))


def test_enough_room_is_no_complaint(tmp_path):
    require_disk(tmp_path / "a" / "b", 1, "A file", "make room")


@pytest.mark.parametrize("text", ["../../x", "a/b", "tasks/mine.py:task", "..\\x"])
def test_a_name_from_data_cannot_leave_its_folder(text, tmp_path):
    assert (tmp_path / folder_name(text)).resolve().parent == tmp_path.resolve()
