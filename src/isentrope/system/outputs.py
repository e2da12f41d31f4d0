"""Where results may not go: into what they are made from.

A file that is written into a checkpoint, a model or a data set makes it another one, which every
later command refuses.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from isentrope.system.checkpoint_folder import step_of_folder
from isentrope.system.errors import FileError
from isentrope.system.files import MARKER


def require_apart(out: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse a folder for results that is in what they are made from, or has checkpoints in it.

    Links and relative paths are followed. A run's own folder is above its checkpoints by two, and
    may have results; it may hold its base model and its data.

    Args:
        out: The folder, perhaps not there yet.
        inputs: Checkpoints, models and data; those that are files, or not there, are passed over.

    Raises:
        FileError: Naming both.
    """
    here = _real(out)
    places = (here, *here.parents)
    complete = next((p for p in places if (p / MARKER).is_file()), None)
    states = next((p for p in places if p.name == "training_state"), None)
    refused = complete or states
    for path in inputs:
        folder = _real(path)
        above = here == folder.parent and step_of_folder(folder.name) is not None
        if folder.is_dir() and (folder in places or above):
            refused = refused or folder
    if refused is not None:
        raise FileError(
            f"Nothing may be written into {out}: it is {refused}, in it or above it, and that is "
            "read, and would be another one afterwards. Choose another folder (--out).",
        )


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(Path(path).expanduser()))  # which does not fail on circular links
