"""Where results may not go: into what they are made from, or where there is no room.

A file that is written into a checkpoint, a model or a data set makes it another one, which every
later command refuses.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import step_of_folder
from isentrope.system.errors import FileError
from isentrope.system.files import MARKER
from isentrope.system.formatting import gigabytes


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
    # realpath does not fail on circular links
    target, *folders = (Path(os.path.realpath(Path(x).expanduser())) for x in (out, *inputs))
    places = (target, *target.parents)
    refused = [p for p in places if (p / MARKER).is_file() or p.name == "training_state"]
    for folder in filter(Path.is_dir, folders):
        above = target == folder.parent and step_of_folder(folder.name) is not None
        refused += [folder] if folder in places or above else []
    if refused:
        raise FileError(
            f"Nothing may be written into {out}: it is {refused[0]}, in it or above it, and that "
            "is read, and would be another one afterwards. Choose another folder (--out).",
        )


_MOMENTS = 8
"""Bytes of AdamW's two moments of a parameter, in float32."""


def require_writable(folder: str | Path, key: str) -> None:
    """Refuse a folder that cannot be written into, or made.

    Args:
        folder: The folder, perhaps not there yet.
        key: The setting that names it.

    Raises:
        FileError: Naming the folder and the setting.
    """
    parent = _find_nearest(Path(folder))
    if not parent.is_dir():
        raise FileError(f"{parent} is a file, not a directory: choose another {key}.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FileError(
            f"Nothing can be written into {parent}: choose another {key}, or change the "
            "permissions.",
        )


_STEP_LINES = 10_000
"""Bytes that the log of a step takes in a checkpoint, with the probe on."""


def require_disk(
    folder: Path, model: Any, saved: Iterable[int], cure: str, tokenizer: int = 0
) -> None:
    """Refuse work whose checkpoints do not fit on the disk.

    Args:
        folder: Where they go, perhaps not there yet.
        model: Its trained parameters are saved.
        saved: The steps of the checkpoints; step 0 has no moments.
        cure: What to do, the end of a sentence.
        tokenizer: Bytes of the tokenizer's files, which are in every checkpoint.

    Raises:
        FileError: Naming both sizes.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = sum(p.numel() * p.element_size() for p in trained)
    moments = sum(p.numel() * _MOMENTS for p in trained)
    steps = list(saved)
    sizes = (weights + tokenizer + (moments if step else 0) for step in steps)
    needed = sum(sizes) + _STEP_LINES * max(steps, default=0)
    free = shutil.disk_usage(_find_nearest(folder)).free
    if needed > free:
        raise FileError(
            f"What is to be saved takes about {gigabytes(needed)}, and {gigabytes(free)} are free "
            f"in {folder}: {cure}.",
        )


def _find_nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    folder = folder.expanduser().absolute()
    return next(p for p in (folder, *folder.parents) if p.exists())
