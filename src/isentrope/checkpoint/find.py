"""The checkpoints that a configuration means, found on disk; nothing is loaded."""

from collections import Counter
from pathlib import Path

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.facts import short_name
from isentrope.checkpoint.folders import checkpoint_folders
from isentrope.config.measure import CheckpointConfig, PolicyConfig


def find_checkpoints(section: PolicyConfig) -> list[StoredCheckpoint]:
    """Find checkpoints on disk.

    Returns:
        In the order given, patterns and folders of checkpoints in natural order; names differ.

    Raises:
        FileNotFoundError: If nothing matches, or a checkpoint is missing.
    """
    paths = checkpoint_folders(section.checkpoint_path)
    optimizer = section.optimizer_path if isinstance(section, CheckpointConfig) else None
    checkpoints: list[StoredCheckpoint] = []
    for path, name in zip(paths, _name_all(paths), strict=True):
        checkpoint = StoredCheckpoint(
            path,
            name=name,
            optimizer=optimizer,
            base_model=section.base_model,
            allow_hub=section.allow_hub,
        )
        checkpoints.append(checkpoint)
    return checkpoints


def find_with_optimizers(section: CheckpointConfig) -> list[StoredCheckpoint]:
    """Find checkpoints and optimizer states on disk.

    Returns:
        One checkpoint per folder, in the order given, patterns in natural order; names differ.

    Raises:
        FileNotFoundError: If nothing matches, or a checkpoint or its optimizer is missing.
        ValueError: If one optimizer path is given for several checkpoints.
    """
    checkpoints = find_checkpoints(section)
    if len(checkpoints) > 1 and section.optimizer_path is not None:
        raise ValueError(
            f"checkpoint.optimizer_path names one optimizer for {len(checkpoints)} checkpoints: "
            "leave it out, and each is read from its own folder."
        )
    for checkpoint in checkpoints:
        _ = checkpoint.optimizer  # refused where there is none
    return checkpoints


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
