"""The command line with one process that fails: FAILS=k, process k fails when the step is known."""

import os

from isentrope.cli.main import app
from isentrope.verbs import influence


def fail(*args, **kwargs):
    """Stand for a rank whose memory is full."""
    raise ValueError("made to fail")


if __name__ == "__main__":
    if os.environ.get("FAILS") == os.environ["RANK"]:
        influence.influence = fail
    app()
