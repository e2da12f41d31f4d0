"""A folder of another trainer's checkpoints: the end of its schedule, and the name it goes by."""

import shutil

import pytest
import torch
from typer.testing import CliRunner

import isentrope as ise
from isentrope.cli.main import app
from tests.tiny_checkpoint import copied, tiny

__all__ = ["tiny"]


@pytest.fixture
def ended(tiny, tmp_path):
    """A checkpoint at the end of a linear schedule, which began with .0005."""
    folder = copied(tiny, tmp_path / "own") / "step_4"
    torch.save({"_last_lr": [0.0], "base_lrs": [5e-4]}, folder / "scheduler.pt")
    return folder


def test_no_checkpoint_is_measured_before_another_is_refused_for_its_rate(ended, tmp_path):
    shutil.copytree(ended, ended.parent / "step_2", ignore=shutil.ignore_patterns("scheduler.pt"))
    prompts = ended.parent / "prompts.jsonl"
    words = ["measure", ended.parent, "--prompts", prompts, "--reward", "prompts"]
    words += ["--set", "sampling.max_new_tokens=3"]
    done = CliRunner().invoke(app, [str(x) for x in (*words, "--out", tmp_path / "run")])
    assert done.exit_code == 1
    text = " ".join(done.output.split())
    assert "learning rate of step_4 is 0" in text
    assert "give a rate by estimator.single_eta=0.0005 (with which its schedule began)" in text
    assert text.count("--set estimator.single_eta=VALUE") == 1
    assert "measure of" not in done.output
    assert not list((tmp_path / "run").glob("measurements/*"))


def test_a_folder_has_its_name_also_where_it_is_the_working_directory(ended, monkeypatch):
    monkeypatch.chdir(ended)
    for place in (".", "./", "next/.."):
        (ended / "next").mkdir(exist_ok=True)
        assert ise.Checkpoint(place).name == "step_4"
