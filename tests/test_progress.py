import io
import logging

import pytest
from rich.console import Console

from isentrope.progress import Clock, Progress, part_of


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100, _environ={})


@pytest.fixture
def updates(monkeypatch):
    """What bars are told: description, done, total."""
    from rich.progress import Progress as Bars

    seen = []
    plain = Bars.update

    def update(self, task, **changes):
        plain(self, task, **changes)
        now = self.tasks[task]
        seen.append((now.description, now.completed, now.total))

    monkeypatch.setattr(Bars, "update", update)
    return seen


def test_a_bar_shows_counts_and_stages(updates):
    with Progress(terminal()).bar("measuring") as report:
        report(0, 2, "entropy")
        report(1, 2)
    assert updates == [("measuring: entropy", 0, 2), ("measuring", 1, 2)]


def test_a_part_reports_its_stages_at_the_place_it_has_in_the_whole(updates):
    with Progress(terminal()).bar("all") as report:
        inner = part_of(report, 3, 5)
        inner(0, 2, "a")
        inner(1, 2, "b")
    assert updates == [("all: a", 3, 5), ("all: b", 3, 5)]


def test_nothing_is_drawn_where_there_is_no_terminal(updates):
    file = io.StringIO()
    for progress in (Progress(), Progress(Console(file=file))):
        with progress.bar("measuring") as report:
            report(0, 2, "entropy")
    assert file.getvalue() == ""
    assert updates == []


def test_a_training_line_is_a_bar_on_a_terminal(updates):
    observe = Progress(terminal()).fine_tuning(2)
    observe({"step": 1, "loss": 0.5})
    observe({"step": 2, "loss": 0.25})
    assert [(words[:10], done, total) for words, done, total in updates] == [
        ("loss 0.500", 1, 2),
        ("loss 0.250", 2, 2),
    ]


def test_a_training_line_is_a_log_record_elsewhere(caplog):
    step = {"reward": 0.5, "entropy": 1.0, "tokens_per_second": 10.0}
    reading = {"probe/first_order": -2e-4, "probe/first_order_se": 3e-5}
    with caplog.at_level(logging.INFO, "isentrope"):
        observe = Progress().training(3)
        observe({"step": 1, **step, **reading})
        observe({"step": 2, **step})
    assert len(caplog.messages) == 2
    for message in caplog.messages:  # the last reading stays, with its step
        assert "-2.0e-04 ± 3e-05 (step 1)" in message
    assert caplog.messages[1].startswith("step 2/3")


def test_times_of_one_name_add_up(monkeypatch):
    now = iter((0.0, 1.0, 3.0, 3.5, 4.0, 8.0, 9.0))
    monkeypatch.setattr("isentrope.progress.time.perf_counter", lambda: next(now))
    clock = Clock()
    for _ in range(2):
        with clock.stage("sampling"):
            pass
    assert clock.seconds == {"sampling": 6.0, "total": 9.0}
