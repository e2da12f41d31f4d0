"""What `isentrope check` says of itself while it works, where its output is a job's log."""

import io
import logging
from itertools import count

import pytest
from rich.console import Console

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.config.io import load_config
from isentrope.system.progress import Progress
from isentrope.verbs.check import check
from tests.tiny_checkpoint import settings

LONG = ("check_adapter", "_check_batch", "check_optimizer", "check_instrument", "check_sampler")


@pytest.fixture
def job():
    """Progress of a check whose output is a file; ten seconds pass from look to look."""
    seconds = count(0, 10)
    return Progress(Console(file=io.StringIO()), "check", lambda: next(seconds))


@pytest.fixture
def begun(job, monkeypatch):
    """The long parts that have begun, each with a line to the log."""
    names = set()

    def observe(name, part):
        def observed(*args, **kwargs):
            names.add(name)
            job.log_if_silent()
            return part(*args, **kwargs)

        return observed

    load = observe("load", StoredCheckpoint.load)
    monkeypatch.setattr(StoredCheckpoint, "load", load)
    for name in LONG:
        monkeypatch.setitem(check.__globals__, name, observe(name, check.__globals__[name]))
    return names


def test_every_long_part_of_a_check_has_a_stage(tiny, job, begun, caplog):
    caplog.set_level(logging.INFO, logger="isentrope")
    with job:
        check(load_config(settings(tiny)))
    lines = [line for line in caplog.messages if line.startswith("check · ")]
    assert begun == {"load", *LONG}
    assert len(lines) >= len(begun)
    assert all(line.count(" · ") >= 2 for line in lines), lines
