"""A run that begins at a checkpoint of another run, with some of its settings changed.

    <new run>/branch.json                  the checkpoint it begins at, and what was changed
    <new run>/training_state/step_N/       that checkpoint, without the record of the step after it
    <new run>/logs/                        the lines of the parent up to step N

Optimizer, sampler and random states are the parent's, so a branch with nothing changed is the
parent from step N on, bit for bit.

A study of branches is K checkpoints × S settings × N repeats, each a run of a few steps.

    <folder>/branches/step_10/<setting>/repeat_0/     a run that begins at the checkpoint

One setting is always `unchanged`. Repeat 0 continues the parent; repeat r is another draw of
prompts and tokens (`training.repeat`), the same draw in every setting, so that settings are
compared in pairs. A branch that is there is continued, or left if it is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from isentrope.config.io import ConfigError, key_of, load_config
from isentrope.config.measure import PolicyConfig
from isentrope.config.train import TrainConfig
from isentrope.recording.next_update import NEXT_UPDATE
from isentrope.runs.checkpoints import find_checkpoints
from isentrope.runs.folder import folder_name
from isentrope.runs.identity import (
    BY_CONTENT,
    CONFIG,
    changed_settings,
    flat_settings,
    require_same,
    schedule_has_end,
)
from isentrope.system.checkpoint_folder import CONTRACT, step_of_folder
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
from isentrope.training.checkpoints import require_resumable
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
    then, config = settings_of(parent), settings_of(parent, changes)
    changed = changed_settings(flat_settings(then), flat_settings(config))
    last, uses = config.training.steps, config.trainer.get("num_iterations", 1)
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
    for mine, theirs in ((files.metrics, parent.metrics), (files.timing, parent.timing)):
        if theirs.exists():
            with reading(theirs):
                write_bytes(mine, theirs.read_bytes())
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


# ------------------------------------------------------------------ studies of branches


UNCHANGED = "unchanged"
"""The setting that others are compared with."""

_BY_OPTION = {
    "training.steps": "--steps",
    "training.repeat": "--repeats",
    "output.directory": "--out",
}


@dataclass(frozen=True)
class BranchStudy:
    """What a study is asked to do.

    Attributes:
        checkpoints: Folders RUN/training_state/step_N, or patterns.
        vary: Alternatives to the parent's settings, as `settings_in` reads them.
        changes: Settings of every branch, "section.key=value".
        repeats: Branches per checkpoint and setting.
        steps: Steps of each.
        prompts: Held-out prompts that start and ends are evaluated on.
        samples: Responses to each.
        folder: Where all of it goes.
    """

    checkpoints: Sequence[str]
    vary: Sequence[str]
    changes: Sequence[str]
    repeats: int
    steps: int
    prompts: int
    samples: int
    folder: Path


@dataclass(frozen=True)
class Planned:
    """One branch.

    Attributes:
        setting: What it changes, as text; `UNCHANGED` for the parent's settings.
        repeat: Which draw of prompts and tokens.
        overrides: Its settings, "section.key=value".
        files: Of its run.
    """

    setting: str
    repeat: int
    overrides: tuple[str, ...]
    files: RunFiles


@dataclass(frozen=True)
class Start:
    """A checkpoint and the branches from it.

    Attributes:
        name: What results call it.
        checkpoint: Its folder.
        config: Configuration of its run.
        step: Its step.
        until: Step that its branches end at.
        branches: Setting by setting, repeat by repeat.
    """

    name: str
    checkpoint: Path
    config: TrainConfig
    step: int
    until: int
    branches: tuple[Planned, ...]


def settings_in(vary: Sequence[str]) -> list[tuple[str, ...]]:
    """The settings that are compared.

    Args:
        vary: Each "KEY=VALUE" or "KEY=VALUE,VALUE", several keys separated by spaces: all
            combinations of the values in one text.

    Returns:
        One list of "section.key=value" per setting, the first of them empty.

    Raises:
        ConfigError: If a text is not of that form, or a key has an option of its own.
    """
    found: list[tuple[str, ...]] = [()]
    for text in vary:
        grid = []
        for part in text.split():
            key, equals, values = part.partition("=")
            if not equals or not all(values.split(",")) or "." not in key:
                raise ConfigError(
                    f"--vary {text!r} is not of the form section.key=value, section.key=value,value"
                    ' or "section.key=value section.key=value".'
                )
            grid.append([f"{key}={value}" for value in values.split(",")])
        found += [setting for setting in product(*grid) if setting not in found]
    return found


def plan_branches(asked: BranchStudy) -> list[Start]:
    """Which branches there are; what cannot be done is refused before any is begun.

    Returns:
        One start per checkpoint.

    Raises:
        ConfigError: If a setting is not known, has an option of its own, or cannot be changed.
        FileNotFoundError: If a checkpoint is not one of a training run.
        ValueError: If a checkpoint lacks a state, or a branch that is there is another one.
    """
    settings = settings_in(asked.vary)
    for change in (*asked.changes, *(text for setting in settings for text in setting)):
        if option := _BY_OPTION.get(key_of(change)):
            raise ConfigError(f"{change} has an option of its own here: use {option}.")
    found = find_checkpoints(PolicyConfig(checkpoint_path=list(asked.checkpoints)))
    return [_start(asked, settings, point.name, point.path) for point in found]


def _start(asked: BranchStudy, settings: list[tuple[str, ...]], name: str, path: Path) -> Start:
    checkpoint, parent = parent_of(path)
    then, plain = settings_of(parent), settings_of(parent, asked.changes)
    step = step_of_folder(checkpoint.resolve().name) or 0
    until = step + asked.steps
    longer = (f"training.steps={until}",) if until > then.training.steps else ()
    branches: list[Planned] = []
    known: list[dict[str, Any]] = []
    for setting in settings:
        changes = (*asked.changes, *setting, *longer)
        config, _ = branch_settings(parent, changes, step)
        flat = flat_settings(config)
        _require_room_in_schedule(then.training.steps, config.trainer, step, asked.steps)
        if flat in known:  # the parent's own value, or another text for the same
            continue
        known.append(flat)
        words = " ".join(setting) or UNCHANGED
        folder = asked.folder / "branches" / name / folder_name(words.replace(" ", ","))
        for repeat in range(asked.repeats):
            draw = f"training.repeat={plain.training.repeat + repeat}"
            files = RunFiles(folder / f"repeat_{repeat}")
            overrides = (*changes, draw, f"output.directory={files.folder}")
            branches.append(Planned(words, repeat, overrides, files))
            _require_same_branch(branches[-1], checkpoint, parent)
    return Start(name, checkpoint, then, step, until, tuple(branches))


def _require_room_in_schedule(last: int, trainer: Mapping[str, Any], step: int, steps: int) -> None:
    """Refuse branches that end in the middle of a batch's uses, or after a schedule's end."""
    if steps % (uses := trainer.get("num_iterations", 1)):
        raise ConfigError(
            f"--steps {steps} is not a multiple of trainer.num_iterations={uses}: a branch would "
            "end in the middle of a batch's uses."
        )
    if step + steps > last and schedule_has_end(trainer):
        raise ConfigError(
            f"--steps {steps} from step {step} ends after step {last}, the last of the parent, on "
            f"which the rates of trainer.lr_scheduler_type={trainer['lr_scheduler_type']} "
            f"depend: choose --steps {max(last - step, 0)} or fewer, or an earlier checkpoint."
        )


def _require_same_branch(branch: Planned, checkpoint: Path, parent: RunFiles) -> None:
    """Refuse to continue a branch that began elsewhere, or with other settings."""
    begun, file = Branch.of(branch.files), branch.files.folder / CONFIG
    if begun is None or not file.is_file():
        return
    cure = "choose another --out, or remove it"
    if begun.contract_sha256 != sha256_of_file(checkpoint / CONTRACT):
        raise ValueError(
            f"{branch.files.folder} began at another checkpoint ({begun.checkpoint}) than "
            f"{checkpoint}: {cure}."
        )
    then = flat_settings(load_config(file, root=TrainConfig))
    now = flat_settings(settings_of(parent, branch.overrides))
    require_same(branch.files.folder, then, now, ("training.steps", *BY_CONTENT))
