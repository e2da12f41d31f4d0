"""However a verb ends, one sentence says so, with the status that shells expect."""

import os
import re
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
import yaml

from isentrope.cli import session
from isentrope.cli.commands import COMMANDS, CONFIG_COMMANDS
from isentrope.system.errors import FileError
from tests.command_line import call
from tests.tiny_checkpoint import settings

PROCESS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from isentrope.cli.main import app
app()
"""
CALL = [sys.executable, "-c", PROCESS]


@pytest.fixture
def run_folder(tmp_path):
    """A folder that `report` does not refuse."""
    folder = tmp_path / "a run"
    (folder / "training_state").mkdir(parents=True)
    return folder


@pytest.fixture
def failing(monkeypatch, run_folder):
    """Make `report` end with an error."""

    def set_up(error):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr("isentrope.reports.report.write_report", fail)
        return call("report", run_folder)

    return set_up


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error",
    [
        PanicException("gone"),
        KeyError("x"),
        TypeError("no"),
        RecursionError("deep"),
        IndexError(),
        ZeroDivisionError("0"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_fault_is_one_sentence_and_its_traceback_is_kept(failing, error, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = failing(error)
    assert result.exit_code == session.FAULT_STATUS
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == 1
    assert "This is a fault of isentrope: please report it" in result.stderr
    file = re.search(r"traceback in (\S+)\.$", result.stderr).group(1)
    assert type(error).__name__ in Path(file).read_text()


def test_the_option_traceback_prints_it(run_folder, monkeypatch):
    def fail(*_, **__):
        raise KeyError("lost")

    monkeypatch.setattr("isentrope.reports.report.write_report", fail)
    result = call("--traceback", "report", run_folder)
    assert "Traceback (most recent call last)" in result.stderr
    assert "with the traceback above" in result.stderr
    assert "Traceback" not in call("report", run_folder).stderr


@pytest.mark.parametrize("before", [[], ["--traceback"]], ids=["early", "in the session"])
@pytest.mark.parametrize(
    "arguments", [["train"], ["sft"], ["train", "config.yaml", "--resume", "run"]], ids=str
)
def test_a_run_without_a_beginning_or_with_two_is_refused_wherever_it_is_seen(before, arguments):
    result = call(*before, *arguments, status=1)
    assert "Error: Give one of a CONFIG" in result.stderr


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FileError("a.json has no key b."), "Error: a.json has no key b."),
        (OSError(28, "No space left on device", "/x/y"), "/x/y: No space left on device."),
        (OSError(28, "No space left on device"), "report could not read or write: No space"),
        (MemoryError(), "The memory is full: lower sampling.batch_size"),
        (torch.OutOfMemoryError("CUDA out of memory."), "The memory is full: lower sampling.batch"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), "The memory is full: lower sampling.batch"),
        (ValueError(), "Error: report failed by ValueError."),
        (Exception("No space left on device (os error 28)"), "device (os error 28)): free disk"),
        (Exception("Permission denied (os error 13)"), "(os error 13)): allow writing there."),
    ],
    ids=str,
)
def test_what_is_refused_is_a_sentence_with_status_1(failing, error, sentence):
    result = failing(error)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert "fault of isentrope" not in result.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [*CALL, "config", "show"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (session.PIPE_STATUS, "")


def stopped(arguments, ready, number, folder):
    """Start a command, send it a signal when a condition holds; what it said, and its status."""
    process = subprocess.Popen(
        [*CALL, *arguments], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        while not ready() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.1)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    return said, process.returncode


CONFIGURED = (
    "sft",
    "evaluate",
    "measure",
    "influence",
    "kernel",
    "noise",
    "variance",
    "entropies",
    "audit",
    "check",
    "plan",
)
ARGUMENTS = {
    **{name: [name, "config.yaml"] for name in CONFIGURED},
    "try": ["try", "all", "config.yaml"],
    "demo": ["demo", "--out", "demo"],
    "train": ["train", "config.yaml", "--out", "run"],
    "convert": ["convert", "source", "--out", "out"],
    "report": ["report", "run"],
    "show": ["show", "run"],
    "view": ["view", "run"],
}
ARGUMENTS_OF_CONFIG = {"show": ["show"], "validate": ["validate", "config.yaml"]}


SIGNALS = [(COMMANDS[0], number) for number in (signal.SIGINT, signal.SIGHUP)]


@pytest.mark.parametrize(
    ("verb", "number"),
    [*((verb, signal.SIGTERM) for verb in (*COMMANDS, *CONFIG_COMMANDS)), *SIGNALS],
    ids=lambda x: getattr(x, "name", x),
)
def test_a_signal_ends_every_verb_with_one_sentence(verb, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("")

    def work(*_, **__):
        os.kill(os.getpid(), number)
        raise AssertionError("the signal did not arrive")

    monkeypatch.setattr(verb, "read", lambda _: None)
    monkeypatch.setattr(verb, "run", work)
    if (before := signal.getsignal(number)) is signal.SIG_IGN:
        pytest.skip("it is ignored here, as under nohup, and a verb leaves it so")
    arguments = ARGUMENTS.get(verb.name)
    if verb in CONFIG_COMMANDS:
        arguments = ["config", *ARGUMENTS_OF_CONFIG[verb.name]]
    result = call(*arguments)
    assert result.exit_code == 128 + number
    cause = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C", signal.SIGHUP: "SIGHUP"}[number]
    assert result.stderr == f"Stopped by {cause}. {verb.kept}\n"
    assert signal.getsignal(number) is before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_check_and_a_demo_that_run(tiny, tmp_path, number):
    many = settings(tiny, batch_config={"B_E": 100_000, "fixed_prompts": False})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(many))
    end = time.monotonic() + 12
    runs = (
        (["check", "config.yaml"], lambda: time.monotonic() > end),
        (
            ["demo", "--out", "demo"],
            lambda: any(tmp_path.glob("demo/**/training_state/step_*")),
        ),
    )
    for arguments, ready in runs:
        said, status = stopped(arguments, ready, number, tmp_path)
        assert status == 128 + number, said
        assert len(re.findall("Stopped by ", said)) == 1
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGTERM, "SIGTERM"),
        pytest.param(signal.SIGINT, "Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_measurement_with_one_sentence(tiny, tmp_path, number, cause):
    many = settings(tiny, batch_config={"B_E": 20000, "fixed_prompts": False})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(many))
    run = tmp_path / "run"
    said, status = stopped(
        ["measure", "config.yaml", "--out", "run"], (run / ".lock").exists, number, tmp_path
    )
    assert status == 128 + number
    assert f"Stopped by {cause}. Nothing is kept" in said
    assert "Traceback" not in said
    assert not run.exists()  # neither lock nor half a folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_run_that_can_be_resumed(tiny, tmp_path, number):
    content = {
        "model": {"path": str(tiny / "base"), "lora_rank": 2},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "sampling": {"max_new_tokens": 3},
        "training": {"steps": 500, "prompts_per_step": 2, "group_size": 4, "save_every": 1},
        "entropy_probe": {"enabled": False},
        "output": {"report_to": []},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    run = tmp_path / "run"
    said, status = stopped(
        ["train", "config.yaml", "--out", "run"],
        (run / "training_state" / "step_2").exists,
        number,
        tmp_path,
    )
    assert status == 128 + number, said
    assert "Resume it by `isentrope train --resume run`." in said
    done = max(int(p.name.removeprefix("step_")) for p in (run / "training_state").glob("step_*"))
    go_on = ["train", "--resume", "run", "--set", f"training.steps={done + 1}"]
    again = subprocess.run([*CALL, *go_on], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (run / "training_state" / f"step_{done + 1}").is_dir()


class Held:
    """Stands for a model."""


def test_after_an_error_nothing_refers_to_what_its_frames_held(monkeypatch, run_folder):
    held = []

    def fail(*_, **__):
        model = Held()
        held.append(weakref.ref(model))
        try:
            raise_from_another()
        except ValueError as cause:
            raise RuntimeError("made to fail") from cause

    def raise_from_another():
        model = Held()
        held.append(weakref.ref(model))
        raise ValueError("why")

    monkeypatch.setattr("isentrope.reports.report.write_report", fail)
    ended = call("report", run_folder, status=1)
    assert "made to fail" in ended.stderr
    assert [model() for model in held] == [None, None]
