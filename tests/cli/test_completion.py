"""What the shell is offered, asked as the shell asks it."""

import os
import subprocess
import sys

import pytest

from isentrope.control.controls import TOKEN_CONTROLS
from tests.cli.test_startup import HEAVY

APP = (
    "import atexit, sys\n"
    f"atexit.register(lambda: print(*({set(HEAVY) - {'pydantic'}} & set(sys.modules)), "
    "file=sys.stderr))\n"
    "from isentrope.cli.main import app\n"
    "app(prog_name='isentrope')"
)


def offered(line, folder):
    """The words that bash is offered after a line, which load nothing heavy."""
    words = f"isentrope {line}"
    asking = {
        "_ISENTROPE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", APP],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | asking,
    )
    assert done.stderr.strip() == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("inf", ["influence"]),
        ("measure c.yaml --set batch_config.B_", ["batch_config.B_E=", "batch_config.B_U="]),
        ("train --set training.keep_l", ["training.keep_last="]),
        ("try cl", ["clip_cov"]),
        ("try bonus,re", ["bonus,repo_r"]),
        ("check run/ch", ["run/checkpoint-20"]),
        ("noise c.yaml --checkpoints run", ["run/checkpoint-20", "run/training_state/step_4"]),
    ],
)
def test_the_shell_is_offered_what_can_be_typed(line, words, tmp_path):
    for checkpoint in ("checkpoint-20", "training_state/step_4"):
        (tmp_path / "run" / checkpoint).mkdir(parents=True)
    assert offered(line, tmp_path) == words


def test_the_controls_that_are_offered_are_those_that_can_be_tried(tmp_path):
    assert set(offered("try ", tmp_path)) == {"all", *TOKEN_CONTROLS}
