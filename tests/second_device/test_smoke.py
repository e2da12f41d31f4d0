"""On a device, the two verbs that everybody begins with; `make second-device` runs the others."""

import subprocess
import sys

import pytest

from tests.second_device.launch import environment, obstacle

FIRST = "check or measure"


def test_check_and_measure_run_on_a_device():
    if reason := obstacle():
        pytest.skip(f"no second device: {reason}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "second_device",
    ]
    done = subprocess.run(
        [*command, "tests/second_device/test_verbs.py", "-k", FIRST],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout, done.stdout
