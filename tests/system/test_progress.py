"""What progress draws on a terminal: whole numbers, and nothing that stays."""

import io
import logging
import re
import threading

import pytest
from rich.console import Console

from isentrope.system.progress import Progress

METRICS = {
    "reward": 0.5,
    "entropy": 2.8881,
    "tokens_per_second": 12345.0,
    "probe/first_order": -8.9e-05,
    "probe/first_order_se": 5e-05,
}


def terminal(width):
    return Console(file=io.StringIO(), force_terminal=True, width=width, _environ={})


def screen(text):
    """The lines that are left on a terminal."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            row += 1
            lines += [""] * (row - len(lines) + 1)
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1])
        elif token.endswith("K") and token.startswith("\x1b"):
            lines[row] = ""
        elif token[0] not in "\x1b\r":
            lines[row] += token
    return [line for line in lines if line.strip()]


def trained(console, last):
    with Progress(console) as progress:
        observe = progress.training(1200)
        for step in (1, last):
            observe(METRICS | {"step": step})
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_numbers_of_a_training_line_are_whole(width):
    said = trained(terminal(width), 1200)
    assert "1200/1200" in said
    assert "…" not in said
    assert ("tokens/s" in said) is (width > 100)


@pytest.mark.parametrize("last", [1200, 7])
def test_a_training_line_is_gone_when_it_ends_or_stops_early(last):
    assert screen(trained(terminal(80), last)) == []


def test_a_bar_is_gone_when_its_work_ends():
    console = terminal(80)
    with Progress(console).bar("measure") as report:
        report(3, 12, "first order")
    assert "measure: first order" in console.file.getvalue()
    assert "3/12" in console.file.getvalue()
    assert screen(console.file.getvalue()) == []


def test_where_nobody_looks_steps_are_logged_with_everything(caplog):
    caplog.set_level(logging.INFO, logger="isentrope")
    Progress(Console(file=io.StringIO())).training(3)(METRICS | {"step": 1})
    (line,) = caplog.messages
    assert line == (
        "step 1/3 · reward 0.500 · entropy 2.888 · ηδH₁ (-9 ± 5)e-05 (step 1) · 12345 tokens/s"
    )


def test_a_reading_without_a_prediction_is_what_was_measured(caplog):
    caplog.set_level(logging.INFO, "isentrope")
    change = {"probe/change": -8.9e-05, "probe/change_se": 5e-05, "step": 1}
    plain = {name: METRICS[name] for name in ("reward", "entropy", "tokens_per_second")}
    with Progress(None) as progress:
        progress.training(1)(plain | change)
    assert "ΔH (-9 ± 5)e-05 (step 1)" in caplog.text


class Time:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def job(caplog):
    """A measurement whose output is a file, its clock, and what it has logged."""
    caplog.set_level(logging.INFO, logger="isentrope")
    clock = Time()
    return Progress(Console(file=io.StringIO()), "measure", clock), clock, caplog


def test_a_job_says_every_ten_seconds_what_it_does(job):
    progress, clock, caplog = job
    with progress.bar("step_20") as outer, progress.bar("measuring") as report:
        outer(1, 2)
        for second in range(1, 26):
            clock.now = 100.0 + second
            report(second, 40, "first order")
            progress.log_if_silent()
    assert caplog.messages == [
        "measure · step_20 1/2 · measuring: first order 10/40 · 10 s",
        "measure · step_20 1/2 · measuring: first order 20/40 · 20 s",
    ]


def test_a_job_that_reports_nothing_is_not_silent(job):
    progress, clock, caplog = job
    with progress.bar("loading"):
        pass
    clock.now += 10
    progress.log_if_silent()
    assert caplog.messages == ["measure · 10 s"]


def test_a_training_that_logs_its_steps_needs_no_other_line(job):
    progress, clock, caplog = job
    observe = progress.training(3)
    for step in (1, 2, 3):
        clock.now += 9
        observe(METRICS | {"step": step})
        progress.log_if_silent()
    assert len(caplog.messages) == 3


def test_work_that_is_done_says_nothing_more(job):
    progress, _, _ = job
    progress.log_if_silent = threading.Event().set
    with progress:
        progress.end_lines()
        assert "progress" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("console", [None, terminal(80)], ids=["no console", "a terminal"])
def test_lines_are_logged_only_where_a_verb_writes_to_no_terminal(console):
    assert not Progress(console).logs


def test_in_a_block_silence_is_looked_for_until_it_ends(job):
    progress, _, _ = job
    looked = threading.Event()
    progress.log_if_silent = looked.set
    with progress:
        assert looked.wait(30)
    assert "progress" not in {thread.name for thread in threading.enumerate()}
