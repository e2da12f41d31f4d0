"""A run that begins at a checkpoint of another run, with some of its settings changed.

    <new run>/branch.json                  the checkpoint it begins at, and what was changed
    <new run>/training_state/step_N/       that checkpoint, without the record of the step after it
    <new run>/logs/                        the lines of the parent up to step N

Optimizer, sampler and random states are the parent's, so a branch with nothing changed is the
parent from step N on, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import CONTRACT, NEXT_UPDATE, step_of_folder
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.run.identity import CONFIG, flat_settings
from isentrope.run.resuming import changed_settings
from isentrope.system.files import (
    files_below,
    fresh_folder,
    publish_folder,
    sha256_of_file,
    write_bytes,
    write_json,
)
from isentrope.system.manifest import verify
from isentrope.system.reading import read_json, reading
from isentrope.training.resumable import require_resumable
from isentrope.training.run_files import WRITING, RunFiles

BRANCH = "branch.json"


@dataclass(frozen=True)
class Branch:
    """Where a run begins.

    Attributes:
        checkpoint: The parent's checkpoint.
        step: Its step.
        contract_sha256: Digest of its contract.
        changed: Key → [the parent's value, the value here].
    """

    checkpoint: str
    step: int
    contract_sha256: str
    changed: Mapping[str, list[Any]]

    @classmethod
    def of(cls, files: RunFiles) -> Branch | None:
        """Where a run began; None for one that began from a model."""
        path = files.folder / BRANCH
        if not path.exists():
            return None
        content = read_json(path, "Restore the file.")
        with reading(path, "Restore the file."):
            return cls(**content)

    @classmethod
    def at(cls, files: RunFiles, step: int) -> Branch | None:
        """Where a run began, if it has come no further than that."""
        begun = cls.of(files)
        return begun if begun and begun.step == step else None


def parent_of(checkpoint: str | Path) -> tuple[Path, RunFiles]:
    """The checkpoint to begin at, and the files of its run.

    Args:
        checkpoint: A folder training_state/step_N of a run.

    Returns:
        The folder and the run.

    Raises:
        FileNotFoundError: If it is not a checkpoint of a run of `isentrope train`.
        ValueError: If a part that a run needs to go on is missing, such as the optimizer's state.
    """
    folder = Path(checkpoint)
    files = RunFiles(folder.resolve().parent.parent)
    if not folder.is_dir() or files.checkpoints != folder.resolve().parent:
        raise FileNotFoundError(
            f"{folder} is not a checkpoint of a training run: give a folder RUN/training_state/"
            "step_N that `isentrope train` wrote."
        )
    if not (files.folder / CONFIG).is_file():
        raise FileNotFoundError(f"{files.folder} holds no run: it has no config.yaml.")
    verify(folder)
    require_resumable(folder)
    return folder, files


def branch_settings(
    parent: RunFiles, changes: Iterable[str], step: int
) -> tuple[TrainConfig, dict[str, list[Any]]]:
    """The configuration of a branch; one without steps that it can take is refused.

    Args:
        parent: The files of the parent.
        changes: What is changed, "section.key=value".
        step: Where the branch begins.

    Returns:
        The configuration, and key → both values of what differs from the parent's.

    Raises:
        ConfigError: If it changes what its states depend on, has no step of its own, or begins in
            the middle of a batch's uses.
    """
    before = settings_of(parent)
    config = settings_of(parent, changes)
    changed = changed_settings(flat_settings(before), flat_settings(config))
    last = config.training.steps
    uses = config.trainer.get("num_iterations", 1)
    if last <= step:
        raise ConfigError(
            f"training.steps={last} is no later than step {step}, where the branch begins: set "
            "training.steps to the last step that it should take."
        )
    if isinstance(uses, int) and uses > 0 and step % uses:
        raise ConfigError(
            f"trainer.num_iterations={uses} cannot begin at step {step}, which is not a multiple "
            "of it: a checkpoint would be in the middle of a batch's uses."
        )
    return config, changed


def begin_branch(
    checkpoint: Path, parent: RunFiles, files: RunFiles, changed: Mapping[str, list[Any]]
) -> None:
    """Make the files of a new run that begins at a checkpoint; config.yaml comes after them.

    Args:
        checkpoint: The parent's.
        parent: Files of its run.
        files: Files of the new run.
        changed: Those of `branch_settings`.

    Raises:
        ValueError: If the parent's log lacks a line before the checkpoint.
    """
    step = step_of_folder(checkpoint.name)
    assert step is not None  # parent_of has compared the name with the step inside
    parent.require_whole_log(step)
    files_below(checkpoint)  # refuses links to folders, which a copy would follow
    record = Branch(str(checkpoint), step, sha256_of_file(checkpoint / CONTRACT), changed)
    for log, log_of_parent in (
        (files.metrics, parent.metrics),
        (files.timing, parent.timing),
    ):
        if log_of_parent.exists():
            with reading(log_of_parent):
                write_bytes(log, log_of_parent.read_bytes())
    files.rewind(step)
    if not files.checkpoint(step).exists():
        partial = files.checkpoints / WRITING
        fresh_folder(partial)
        ignored = shutil.ignore_patterns(NEXT_UPDATE)
        shutil.copytree(checkpoint, partial, ignore=ignored, dirs_exist_ok=True)
        publish_folder(partial, files.checkpoint(step))
    write_json(files.folder / BRANCH, asdict(record))


def settings_of(parent: RunFiles, changes: Iterable[str] = ()) -> TrainConfig:
    """The parent's configuration, perhaps with changes."""
    return load_config(parent.folder / CONFIG, list(changes), root=TrainConfig)
