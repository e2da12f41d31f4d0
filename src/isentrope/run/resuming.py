"""Is this the training run that it was? What a run that goes on, or branches, may change.

The states in a checkpoint depend on the trainable set, the base model, the data and the settings of
the step. A branch is another run that begins there; it shares with its parent what the states
depend on.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from isentrope.checkpoint.digests import Digests
from isentrope.checkpoint.files import CONTRACT
from isentrope.config.io import ConfigError, load_config
from isentrope.config.paths import relative_to_run
from isentrope.config.train import TrainConfig
from isentrope.run.identity import (
    Content,
    Identity,
    changed,
    flat_settings,
    known_parts,
    require_same,
)

MAY_CHANGE = (
    "training.steps",
    "training.keep_last",
    "training.keep_every",
    "output.",
    "model.allow_hub",
)
"""Settings that change no step of a run; training.steps only under a schedule without an end."""

FIXED = (
    "model.",
    "data.",
    "training.seed",
    "training.prompt_weighting",
    "trainer.optim",
    "trainer.fp16",
    "trainer.fsdp",
    "trainer.deepspeed",
)
"""Settings that a branch shares with its parent, whose states depend on them; others may change."""

BY_CONTENT = {"model.path": ("base weights", "weights"), "data.dataset_path": ("data",)}
"""Paths of training, and the parts of its digests that say whether their content is the same."""

_STATES = ("trainable", "frozen_sha256", "world_size", "eos_token_ids", "dataset_sha256")
"""What the states in a checkpoint depend on, as its contract has it."""

OF_THE_STEP = (
    "objective",
    "plain_objective",
    "loss_type",
    "normaliser",
    "advantages",
    "control",
    "max_new_tokens",
    "eos_token_ids",
    "temperature",
    "max_grad_norm",
    "group_size",
    "optimizer",
)
"""Entries of a contract that make the measured step: equal in all runs of a study."""

_WITHOUT_END = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules whose rates do not depend on how many steps there will be."""

RESUMED = (
    "set it back to resume the run, or start a new run with another --out. On resuming, only "
    "training.steps, training.keep_last, training.keep_every and output.* may change."
)


def contract_config(config: TrainConfig, run: Path) -> dict[str, Any]:
    """The configuration as a contract holds it: all that makes the run what it is."""
    plain = relative_to_run(config, run, run)
    return plain.model_dump(mode="json", exclude={"output", "provenance"})


def require_same_training(
    checkpoint: Path,
    contract: Content,
    config: TrainConfig,
    made_from: Digests,
    may_change: Collection[str] = (),
) -> None:
    """Refuse to resume a run with a configuration, a base model or data other than it had.

    Args:
        checkpoint: The checkpoint to resume from.
        contract: Its contract.
        config: The configuration now.
        made_from: Result of `origin.training_origin` now.
        may_change: Keys that a branch changes here.

    Raises:
        ConfigError: Naming the key and both values, or what changed.
    """
    try:
        settings = flat_settings(load_config(contract["config"], root=TrainConfig))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration in {checkpoint / CONTRACT} cannot be read ({error}): restore the "
            "file, or start a new run with another --out."
        ) from error
    before = Identity(settings, contract.get("made_from", {}))
    current = Identity(flat_settings(config), made_from)
    same_content = _compared_by_content(before.digests, current.digests)
    require_same(
        checkpoint,
        before,
        current,
        (*MAY_CHANGE, *same_content, *may_change),
        cure=RESUMED,
        cure_of_files="or start a new run with another --out.",
    )
    if not may_change and schedule_has_end(config.trainer):
        schedule = f"the rates of trainer.lr_scheduler_type={config.trainer['lr_scheduler_type']}"
        steps = "training.steps"
        require_same(
            checkpoint,
            Identity({steps: before.settings[steps]}),
            Identity({steps: current.settings[steps]}),
            cure=f"{schedule} depend on it. Set it back, or start a new run from this checkpoint.",
        )


def _compared_by_content(before: Digests, current: Digests) -> set[str]:
    """Paths whose content both sides know, so that its digests are compared instead."""
    unknown = {*before, *current} - {*known_parts(before, current)}
    return {key for key, parts in BY_CONTENT.items() if unknown.isdisjoint(parts)}


def schedule_has_end(trainer: Content) -> bool:
    """Whether the rates of a run's steps depend on how many steps there will be.

    Args:
        trainer: The section `trainer`.

    Returns:
        False for rates that are constant, or constant after a warm-up of a number of steps.
    """
    schedule = trainer.get("lr_scheduler_type", "constant")
    shares = trainer.get("warmup_ratio") or 0 < (trainer.get("warmup_steps") or 0) < 1
    return schedule != "constant" and (schedule not in _WITHOUT_END or bool(shares))


def require_same_run(
    checkpoint: Path, saved: Content, current: Content, *, branched: bool = False
) -> None:
    """Refuse to resume from a checkpoint whose states are of other parameters, prompts or settings.

    Args:
        checkpoint: The checkpoint.
        saved: Its contract.
        current: The contract of the resumed run.
        branched: Whether it is another run that begins there, whose settings may differ.
    """
    compared = {*_STATES} if branched else {*_STATES, *OF_THE_STEP}
    keys = current.keys() & compared
    before, today = (
        Identity(flat_settings({key: side[key] for key in keys & side.keys()}))
        for side in (saved, current)
    )
    require_same(checkpoint, before, today, cure=RESUMED)


def changed_settings(before: Content, after: Content) -> dict[str, list[Any]]:
    """What a branch changes.

    Args:
        before: `flat_settings` of the parent.
        after: That of the branch.

    Returns:
        Key → both values.

    Raises:
        ConfigError: If a setting that a branch shares with its parent is another.
    """
    keys = changed(before, after)
    if fixed := [key for key in keys if key.startswith(FIXED)]:
        raise ConfigError(
            f"{fixed[0]} cannot change in a branch (it was {before.get(fixed[0])} and is "
            f"{after.get(fixed[0])}): the states it takes over depend on it. Start a new run "
            "instead."
        )
    return {key: [before.get(key), after.get(key)] for key in keys}
