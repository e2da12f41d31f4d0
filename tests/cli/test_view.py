import signal
import subprocess
import sys
import urllib.request

from tests.command_line import call, said
from tests.reports.made_up import make_run

PROCESS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from isentrope.cli.main import app
app()
"""


def test_view_prints_its_address_and_ends_by_ctrl_c_with_success(tmp_path):
    run = make_run(tmp_path / "run", 2, 2, steps=(8,))
    command = [sys.executable, "-c", PROCESS, "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address, _, sentence = process.stdout.readline().partition(" ")
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(address, timeout=60) as answer:
                assert b"entropy report" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert str(run) in sentence
    assert process.returncode == 0
    assert output == f"Ended {address}\n"
    assert not list(run.glob("*.html"))


def test_view_of_a_folder_that_is_not_there_is_refused_in_one_sentence(tmp_path):
    answer = call("view", tmp_path / "absent", status=1)
    assert "is not a directory" in said(answer)
