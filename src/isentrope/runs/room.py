"""Whether results can be written: looked at before any work is done."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from isentrope.config.train import TrainingConfig
from isentrope.system.errors import FileError

_OPTIMIZER_BYTES = 8
"""Of AdamW per trained parameter: two moments in float32."""


def require_writable(folder: str | Path, key: str) -> None:
    """Refuse a folder that cannot be written into, or made.

    Args:
        folder: The folder, perhaps not there yet.
        key: The setting that names it.

    Raises:
        FileError: Naming the folder and the setting.
    """
    there = _nearest(Path(folder))
    if not there.is_dir():
        raise FileError(folder, f"{there} is a file, not a directory: choose another {key}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(
            folder,
            f"Nothing can be written into {there}: choose another {key}, or change the "
            "permissions.",
        )


def require_disk(folder: Path, needed: int, what: str, cure: str) -> None:
    """Refuse work whose files do not fit on the disk.

    Args:
        folder: Where they go, perhaps not there yet.
        needed: Their size in bytes, about.
        what: What they are.
        cure: What to do, the end of a sentence.

    Raises:
        FileError: Naming both sizes.
    """
    free = shutil.disk_usage(_nearest(folder)).free
    if needed > free:
        raise FileError(
            folder,
            f"{what} needs about {_size(needed)}, and {_size(free)} are free in {folder}: {cure}.",
        )


def checkpoints_size(training: TrainingConfig, weights: int, trained: int, done: int) -> int:
    """About how many bytes the checkpoints of a run will take, with the one that is being written.

    Args:
        training: How many steps, and which checkpoints are kept.
        weights: Bytes of the weights that a checkpoint holds.
        trained: Trained parameters.
        done: The step that the run resumes from.

    Returns:
        Bytes.
    """
    steps = range(done + 1 if done else 0, training.steps + 1)
    saved = [s for s in steps if s % training.save_every == 0 or s == training.steps]
    if training.keep_last is not None:
        every = training.keep_every
        newest = set(saved[-training.keep_last - 1 :])
        saved = [s for s in saved if s in newest or (every is not None and s % every == 0)]
    return sum(weights + (trained * _OPTIMIZER_BYTES if step else 0) for step in saved)


def folder_name(text: str) -> str:
    """A name of a folder from a text that may hold a path: separators become underscores."""
    return text.replace("/", "_").replace("\\", "_").lstrip(".") or "data"


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    folder = folder.expanduser().absolute()
    return next(p for p in (folder, *folder.parents) if p.exists())


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e3:.0f} kB"
