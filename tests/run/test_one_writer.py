import os
import subprocess
import sys
import threading

import pytest

from isentrope.reports.report import write_report
from isentrope.run.lock import LOCK, one_writer

HOLD = """
import sys, time
from isentrope.run.lock import one_writer
with one_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds tmp_path/run."""
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        yield folder, child
        child.kill()


def test_a_second_process_and_a_report_are_told_who_writes_and_a_killed_one_holds_nothing(
    holder, tmp_path
):
    folder, child = holder
    with (
        pytest.raises(BlockingIOError, match=rf"process {child.pid} on .*, -c .*, since 20"),
        one_writer(folder),
    ):
        pass
    for run in (folder, tmp_path / "mine"):
        (run / "logs").mkdir(parents=True)
        (run / "logs" / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    with pytest.raises(BlockingIOError, match="written by"):
        write_report(folder)
    assert write_report(tmp_path / "mine", folder).page.exists()  # to read needs no lock
    child.kill()
    child.wait()
    assert (folder / LOCK).exists()  # what it left does no harm
    with one_writer(folder):
        assert f"process {os.getpid()} on " in (folder / LOCK).read_text()
    assert not (folder / LOCK).exists()


def test_a_block_inside_a_block_is_the_same_writer_until_the_outer_one_ends(tmp_path):
    refused = []

    def other():
        try:
            with one_writer(tmp_path):
                pass
        except BlockingIOError as error:
            refused.append(str(error))

    with one_writer(tmp_path):
        with one_writer(tmp_path / "x" / ".."):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    with one_writer(tmp_path):
        pass


def test_a_folder_in_which_nothing_was_written_is_not_left(tmp_path):
    with pytest.raises(KeyError), one_writer(tmp_path / "a" / "b"):
        raise KeyError
    assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match="file/run"),
        one_writer(tmp_path / "file" / "run"),
    ):
        pass
