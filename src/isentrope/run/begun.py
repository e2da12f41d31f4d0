"""The settings of a run that goes on, or begins at another: read and refused before any work."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from isentrope.checkpoint.files import step_of_folder
from isentrope.config.io import ConfigError, key_of, load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.run.branch import branch_settings, parent_of
from isentrope.run.identity import CONFIG
from isentrope.run.resuming import BY_CONTENT, MAY_CHANGE, RESUMED
from isentrope.training.run_files import RunFiles

_Config = TypeVar("_Config", TrainConfig, SftConfig)

MODEL = "model"
"""Folder of the fine-tuned model in a run folder."""
_MADE: dict[type[Any], tuple[str, tuple[str, ...]]] = {
    TrainConfig: ("train", (CONFIG,)),
    SftConfig: ("sft", (MODEL, "training_state", CONFIG)),
}
"""The verb of a configuration, and the names by which a folder has a run of it."""


def require_no_run(files: RunFiles, kind: type[_Config]) -> None:
    """Refuse a folder that has files of a run.

    Args:
        files: Of the run that is to start there.
        kind: Of its configuration.

    Raises:
        FileExistsError: With what to do.
    """
    verb, names = _MADE[kind]
    if any((files.folder / name).exists() for name in names):
        raise FileExistsError(
            f"{files.folder} holds a run: resume it by `isentrope {verb} --resume {files.folder}`, "
            "or choose another --out."
        )


def begun_settings(files: RunFiles, changes: Sequence[str], kind: type[_Config]) -> _Config:
    """The settings of a run that goes on.

    Args:
        files: The run's.
        changes: Settings that change, "section.key=value".
        kind: Of its configuration.

    Returns:
        The configuration.

    Raises:
        FileNotFoundError: If the folder holds no run.
        ConfigError: If a setting is changed that may not, or the run is of another verb.
    """
    folder = files.folder
    is_sft = kind is SftConfig
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} holds no run: it has no {CONFIG}{_advice(folder, kind)}."
        )
    may_change = ("output.",) if is_sft else (*MAY_CHANGE, *BY_CONTENT)
    keys = {change: key_of(change) for change in changes}
    for change, key in keys.items():
        if key == "output.directory" or not key.startswith(may_change):
            cure = "only output.* may change." if is_sft else RESUMED
            raise ConfigError(f"{change} would make it another run: {cure}")
    return load_config(folder / CONFIG, changes, root=kind)


def is_done(files: RunFiles, steps: int | None) -> bool:
    """Whether a run has taken all of its steps.

    Args:
        files: The run's.
        steps: Of a training; None for a fine-tuning, which ends with its model.

    Returns:
        True where nothing is left to do.
    """
    if steps is None:
        return (files.folder / MODEL).exists()
    return max(files.steps(), default=-1) >= steps


def branched_settings(
    checkpoint: str | Path, overrides: Iterable[str]
) -> tuple[Path, RunFiles, TrainConfig, dict[str, list[Any]]]:
    """The settings of a run that begins at a checkpoint of another, in a folder of its own.

    Args:
        checkpoint: A folder RUN/training_state/step_N.
        overrides: Settings of the new run; `output.directory` is one of them.

    Returns:
        The checkpoint, the files of its run, the configuration, and key → both values of what
        differs.

    Raises:
        FileNotFoundError: If there is no such checkpoint.
        FileExistsError: If the folder holds a run.
        ConfigError: If a setting is changed that the parent's states depend on, or that leaves no
            step to take.
        ValueError: If no folder is given, or the checkpoint lacks a state.
    """
    start, parent = parent_of(checkpoint)
    config, changed = branch_settings(parent, overrides, step_of_folder(start.name) or 0)
    if config.output.directory is None:
        raise ValueError("A branch is a run with a folder of its own: give it by --out.")
    require_no_run(RunFiles(config.output.directory), TrainConfig)
    return start, parent, config, changed


def _advice(folder: Path, kind: type[Any]) -> str:
    """What is said beside where a folder holds no run."""
    if kind is SftConfig:
        return "; a run is resumed if it was begun with fine_tuning.save_every"
    in_a_run = (folder.resolve().parent.parent / CONFIG).is_file()
    return ": to start a run from a checkpoint, use --from" if in_a_run else ""
