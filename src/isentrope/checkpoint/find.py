"""The checkpoints that a configuration means, found on disk; nothing is loaded."""

import re
from collections import Counter
from glob import glob
from pathlib import Path

from isentrope.checkpoint.checkpoint import Checkpoint
from isentrope.checkpoint.facts import short_name
from isentrope.checkpoint.files import step_of_folder
from isentrope.config.measure import CheckpointConfig, PolicyConfig
from isentrope.models.checkpoint import require_checkpoint


def find_checkpoints(where: PolicyConfig) -> list[Checkpoint]:
    """Find checkpoints on disk.

    Returns:
        In the order given, patterns and folders of checkpoints in natural order; names differ.

    Raises:
        FileNotFoundError: If nothing matches, or a checkpoint is missing.
    """
    entries = where.checkpoint_path
    if isinstance(entries, str):
        entries = [entries]
    paths: list[Path] = []
    for entry in entries:
        paths += map(require_checkpoint, _match(entry))
    optimizer = where.optimizer_path if isinstance(where, CheckpointConfig) else None
    checkpoints: list[Checkpoint] = []
    for path, name in zip(paths, _name_all(paths), strict=True):
        checkpoint = Checkpoint(
            path,
            name=name,
            optimizer=optimizer,
            base_model=where.base_model,
            allow_hub=where.allow_hub,
        )
        checkpoints.append(checkpoint)
    return checkpoints


def find_with_optimizers(where: CheckpointConfig) -> list[Checkpoint]:
    """Find checkpoints and optimizer states on disk.

    Returns:
        One checkpoint per folder, in the order given, patterns in natural order; names differ.

    Raises:
        FileNotFoundError: If nothing matches, or a checkpoint or its optimizer is missing.
        ValueError: If one optimizer path is given for several checkpoints.
    """
    checkpoints = find_checkpoints(where)
    if len(checkpoints) > 1 and where.optimizer_path is not None:
        raise ValueError(
            f"checkpoint.optimizer_path names one optimizer for {len(checkpoints)} checkpoints: "
            "leave it out, and each is read from its own folder."
        )
    for checkpoint in checkpoints:
        _ = checkpoint.optimizer  # refused where there is none
    return checkpoints


def _match(entry: str) -> list[Path]:
    """The folders that a path or a pattern means."""
    path = Path(entry).expanduser()
    if path.exists() or not any(c in entry for c in "*?["):
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


def _name_all(paths: list[Path]) -> list[str]:
    """Short names, with the run's where two checkpoints would share one."""
    short = list(map(short_name, paths))
    times = Counter(short)
    names: list[str] = []
    for path, name in zip(paths, short, strict=True):
        parent = path.resolve().parent
        run = parent.parent.name if parent.name == "training_state" else parent.name
        names.append(f"{run}_{name}" if times[name] > 1 else name)
    times = Counter(names)
    if max(times.values(), default=1) == 1:
        return names
    return [f"{name}_{i}" if times[name] > 1 else name for i, name in enumerate(names)]
