import shutil
import subprocess

import pytest

from isentrope.run.folder import content_differences, git_commit, run_directory, versions


def test_run_folders_are_named_by_the_time_or_by_the_user(tmp_path):
    assert run_directory(None).name.startswith("run_20")
    assert run_directory(str(tmp_path)) == tmp_path


def test_a_rerun_says_which_versions_differ():
    assert content_differences(versions()) == []
    packages = versions()["packages"] | {"torch": "1.0"}
    (said,) = content_differences({**versions(), "packages": packages})
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
