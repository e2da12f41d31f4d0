"""A study of branches: K checkpoints × S settings × N repeats, each a run of a few steps.

    <folder>/branches/step_10/<setting>/repeat_0/     a run that begins at the checkpoint

One setting is always `unchanged`. Repeat 0 continues the parent; repeat r is another draw of
prompts and tokens (`training.repeat`), the same draw in every setting, so that settings are
compared in pairs. A branch that is there is continued, or left if it is done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import CONTRACT, step_of_folder
from isentrope.checkpoint.find import find_checkpoints
from isentrope.config.io import ConfigError, key_of, load_config
from isentrope.config.measure import PolicyConfig
from isentrope.config.train import TrainConfig
from isentrope.run.branch import Branch, branch_settings, parent_of, settings_of
from isentrope.run.folder import folder_name
from isentrope.run.identity import CONFIG, Identity, flat_settings, require_same
from isentrope.run.resuming import BY_CONTENT, schedule_has_end
from isentrope.system.files import sha256_of_file
from isentrope.training.run_files import RunFiles

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
    then = Identity(flat_settings(load_config(file, root=TrainConfig)))
    now = Identity(flat_settings(settings_of(parent, branch.overrides)))
    require_same(branch.files.folder, then, now, ("training.steps", *BY_CONTENT))
