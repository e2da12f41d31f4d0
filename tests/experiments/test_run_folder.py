import json
import math
import shutil
import subprocess

import pytest

from isentrope.experiments.run_folder import (
    differences,
    git_commit,
    run_directory,
    versions,
    whole_folder,
    write_json,
)


def test_numbers_that_json_cannot_hold_are_null(tmp_path):
    path = write_json(tmp_path / "a" / "r.json", {"x": math.nan, "y": [1.5, math.inf], "z": (1,)})
    assert json.loads(path.read_text()) == {"x": None, "y": [1.5, None], "z": [1]}
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def test_a_folder_appears_whole(tmp_path):
    with whole_folder(tmp_path / "run" / "m") as here:
        (here / "r").write_text("1")
        assert not (tmp_path / "run" / "m").exists()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["m"]


def test_a_failure_leaves_nothing_behind(tmp_path):
    def fail():
        with whole_folder(tmp_path / "run" / "m") as here:
            (here / "r").write_text("1")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared(tmp_path):
    (tmp_path / ".m.partial").mkdir()
    (tmp_path / ".m.partial" / "old").write_text("")
    with whole_folder(tmp_path / "m") as here:
        assert list(here.iterdir()) == []


def test_results_are_never_written_over(tmp_path):
    (tmp_path / "m").mkdir()
    with (
        pytest.raises(FileExistsError, match="holds results already"),
        whole_folder(tmp_path / "m"),
    ):
        pass


def test_run_folders_are_named_by_the_time_or_by_the_user(tmp_path):
    assert run_directory(None).name.startswith("run_20")
    assert run_directory(str(tmp_path)) == tmp_path


def test_a_rerun_says_which_versions_differ():
    made_with = versions()
    assert differences(made_with) == []
    made_with["packages"] |= {"torch": "1.0"}
    (said,) = differences(made_with)
    assert said.startswith("torch 1.0 then,")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_changed_sources_are_called_dirty(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    assert git_commit(tmp_path) is None
    git("init")
    (tmp_path / "__init__.py").write_text("")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e@x", "commit", "--no-verify", "-m", "first")
    commit = git_commit(tmp_path)
    assert len(commit) == 40
    (tmp_path / "__init__.py").write_text("1")
    assert git_commit(tmp_path) == f"{commit}-dirty"
