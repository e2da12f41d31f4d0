"""Whether results can be written: looked at before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

from isentrope.system.errors import FileError


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


def folder_name(text: str) -> str:
    """A name of a folder from a text that may hold a path: separators become underscores."""
    return text.replace("/", "_").replace("\\", "_").lstrip(".") or "data"


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    folder = folder.expanduser().absolute()
    return next(p for p in (folder, *folder.parents) if p.exists())
