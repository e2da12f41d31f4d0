"""What cannot be written is refused before any work is done."""

import shutil
from collections import namedtuple

import pytest

from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.run.folder import folder_name
from isentrope.system.errors import FileError
from isentrope.system.outputs import require_writable
from isentrope.training.run_files import kept_steps
from isentrope.verbs.check import check
from isentrope.verbs.loop import run_verb
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train
from tests.tiny_checkpoint import settings


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
        run_verb(MEASURING["measure"], load_config(settings(tiny, detailed_logging=logs)))


@pytest.mark.parametrize(("verb", "root"), [(train, TrainConfig), (sft, SftConfig)])
def test_a_run_whose_checkpoints_do_not_fit_is_refused(tmp_path, monkeypatch, verb, root):
    usage = namedtuple("Usage", "total used free")(10**6, 10**6 - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    asked = {"model": {"path": "toy", "lora_rank": 0}, "data": {"dataset_name": "addition"}}
    asked["output"] = {"directory": str(tmp_path / "run")}
    with pytest.raises(FileError, match=r"saved takes about .* MB, and 1.0 kB are free in .*run: "):
        verb(load_config(asked, root=root))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("steps", "keep", "kept"),
    [
        (range(101), (), list(range(0, 101, 10))),
        (range(96), (), [*range(0, 91, 10), 95]),
        (range(81, 101), (), [90, 100]),
        (range(101), (2,), [80, 90, 100]),
        (range(101), (1, 50), [0, 50, 90, 100]),
        (range(101, 101), (), []),
    ],
)
def test_checkpoints_are_counted_as_they_are_kept(steps, keep, kept):
    assert kept_steps(steps, 10, *keep) == kept


def test_a_noise_scale_of_three_groups_is_refused_before_sampling(tiny):
    with pytest.raises(ValueError, match=r"4 of them or more .*B_U is 3"):
        run_verb(MEASURING["noise"], load_config(settings(tiny)))


@pytest.mark.parametrize("text", ["../../x", "a/b", "tasks/mine.py:task", "..\\x"])
def test_a_name_from_data_cannot_leave_its_folder(text, tmp_path):
    assert (tmp_path / folder_name(text)).resolve().parent == tmp_path.resolve()
