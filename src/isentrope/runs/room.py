"""Whether results can be written: looked at before any work is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isentrope.system.errors import FileError

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
    there = _nearest(Path(folder))
    if not there.is_dir():
        raise FileError(folder, f"{there} is a file, not a directory: choose another {key}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FileError(
            folder,
            f"Nothing can be written into {there}: choose another {key}, or change the "
            "permissions.",
        )


def require_disk(folder: Path, model: Any, saved: Iterable[int], cure: str) -> None:
    """Refuse work whose checkpoints do not fit on the disk.

    Args:
        folder: Where they go, perhaps not there yet.
        model: Its trained parameters are saved.
        saved: The steps of the checkpoints; step 0 has no moments.
        cure: What to do, the end of a sentence.

    Raises:
        FileError: Naming both sizes.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = sum(p.numel() * p.element_size() for p in trained)
    moments = sum(p.numel() * _MOMENTS for p in trained)
    needed = sum(weights + (moments if step else 0) for step in saved)
    free = shutil.disk_usage(_nearest(folder)).free
    if needed > free:
        raise FileError(
            folder,
            f"What is to be saved takes about {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are "
            f"free in {folder}: {cure}.",
        )


def kept_steps(
    steps: range, every: int, keep_last: int | None = None, keep_every: int | None = None
) -> list[int]:
    """Steps whose checkpoints will be there together, with the one that is being written.

    Args:
        steps: Those that will be taken; the last one is saved in any case.
        every: Steps between checkpoints.
        keep_last: Newest checkpoints kept; None for all.
        keep_every: Multiples of this many steps are kept beside them.

    Returns:
        The steps, in order.
    """
    saved = [step for step in steps if step % every == 0 or step == steps[-1]]
    newest = saved if keep_last is None else saved[-keep_last - 1 :]
    return [s for s in saved if s in newest or (keep_every is not None and s % keep_every == 0)]


def folder_name(text: str) -> str:
    """A name of a folder from a text that may hold a path: separators become underscores."""
    return text.replace("/", "_").replace("\\", "_").lstrip(".") or "data"


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    folder = folder.expanduser().absolute()
    return next(p for p in (folder, *folder.parents) if p.exists())
