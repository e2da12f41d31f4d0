"""The command line with one process that fails as its environment says.

FAILS=k           process k fails when the step is known
KILLED_AFTER=k    the last process kills itself when k tiles are saved
SAVES=listed      names of the tiles that are saved go to standard error
"""

import os
import signal
import sys

from isentrope.attribution.gradients import gram
from isentrope.cli.main import app
from isentrope.verbs import influence

_plain = gram._Tiles.save  # pyright: ignore[reportPrivateUsage]
_saved = [0]


def save(self, k, tile):
    """Save a tile, then do what was asked for."""
    _plain(self, k, tile)
    _saved[0] += 1
    if os.environ.get("SAVES") and os.environ["RANK"] == "0":
        print("saves", self._path(k).name, file=sys.stderr, flush=True)
    last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
    if last and str(_saved[0]) == os.environ.get("KILLED_AFTER"):
        os.kill(os.getpid(), signal.SIGKILL)


def fail(*args, **kwargs):
    """Stand for a rank whose memory is full."""
    raise ValueError("made to fail")


if __name__ == "__main__":
    gram._Tiles.save = save
    if os.environ.get("FAILS") == os.environ["RANK"]:
        influence.influence = fail
    app()
