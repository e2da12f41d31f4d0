"""The folders that `checkpoint.checkpoint_path` means: a path, a pattern, or a list of them."""

import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path

from isentrope.checkpoint.files import named_path, step_of_folder
from isentrope.models.checkpoint_folder import require_checkpoint


def checkpoint_folders(entries: str | Sequence[str]) -> list[Path]:
    """Find the folders of checkpoints.

    Args:
        entries: Paths of checkpoints or of folders that hold checkpoints step_N, or patterns.

    Returns:
        In the order given, patterns and folders of checkpoints in natural order.

    Raises:
        FileNotFoundError: If nothing matches, or a folder is not a checkpoint.
    """
    if isinstance(entries, str):
        entries = [entries]
    return [require_checkpoint(path) for entry in entries for path in _match(entry)]


def is_pattern(entry: str) -> bool:
    """Whether a text, if nothing has it as its path, is a pattern of paths."""
    return any(c in entry for c in "*?[")


def _match(entry: str) -> list[Path]:
    """The folders that a path or a pattern means."""
    path = named_path(entry)
    if path.exists() or not is_pattern(entry):
        return _look_inside(path) or [path]
    matches = map(Path, glob(str(path), recursive=True))  # hidden ones are not complete
    folders = [folder for folder in matches if folder.is_dir()]
    if not folders:
        raise FileNotFoundError(f"No checkpoint folder matches {entry}.")
    return sorted(folders, key=_split_numbers)


def _look_inside(folder: Path) -> list[Path]:
    """The checkpoints step_N in a folder that is none itself, such as training_state."""
    if not folder.is_dir() or any(folder.glob("*config.json")) or (folder / "_actor").is_dir():
        return []
    steps = [p for p in folder.iterdir() if p.is_dir() and step_of_folder(p.name) is not None]
    return sorted(steps, key=_split_numbers)


def _split_numbers(path: Path) -> list[int | str]:
    """A path as texts and numbers, by which step_9 comes before step_10."""
    return [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", str(path))]
