"""Is this the same run, study or evaluation? The only module that compares what was with what is.

Settings are compared by dotted key, files by digests of their content (`origin`). File times are
not looked at, and neither is where files lie: a folder that was copied, touched or moved continues.
"""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from isentrope.checkpoint.files import CONTRACT
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import TrainConfig
from isentrope.config.values import relative_to_run
from isentrope.results.result import Result
from isentrope.run.folder import content_differences
from isentrope.run.origin import (
    PATHS,
    Digests,
    changed_parts,
    known_parts,
    of_evaluation,
    of_measurement,
)

log = logging.getLogger("isentrope")

Content = Mapping[str, Any]
"""Settings by dotted key, or the entries of a contract."""

CONFIG = "config.yaml"

MAY_CHANGE = (
    *("training.steps", "training.keep_last", "training.keep_every", "output."),
    "model.allow_hub",
)
"""Settings that change no step of a run; training.steps only under a schedule without an end."""

FIXED = (
    *("model.", "data.", "training.seed", "training.prompt_weighting"),
    *("trainer.optim", "trainer.fp16", "trainer.fsdp", "trainer.deepspeed"),
)
"""Settings that a branch shares with its parent, whose states depend on them; others may change."""

BY_CONTENT = {"model.path": ("base weights", "weights"), "data.dataset_path": ("data",)}
"""Paths of training, and the parts of its digests that say whether their content is the same."""

_STATES = ("trainable", "frozen_sha256", "world_size", "eos_token_ids", "dataset_sha256")
"""What the states in a checkpoint depend on, as its contract has it."""

OF_THE_STEP = (
    *("objective", "plain_objective", "loss_type", "normaliser", "advantages", "control"),
    *("max_new_tokens", "eos_token_ids", "temperature", "max_grad_norm", "group_size", "optimizer"),
)
"""Entries of a contract that make the measured step: equal in all runs of a study."""

_WITHOUT_END = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules whose rates do not depend on how many steps there will be."""

RESUMED = (
    "set it back to resume the run, or start a new run with another --out. On resuming, only "
    "training.steps, training.keep_last, training.keep_every and output.* may change."
)


def changed(before: Content, now: Content, may_change: Collection[str] = ()) -> list[str]:
    """Keys of either whose values differ, but for those that begin with what may change."""
    allowed = tuple(may_change)
    keys = (key for key in sorted({*before, *now}) if not key.startswith(allowed))
    return [key for key in keys if before.get(key) != now.get(key)]


def require_same(
    what: object,
    before: Content,
    now: Content,
    may_change: Collection[str] = (),
    cure: str = "choose another --out, or remove it.",
) -> None:
    """Refuse to continue with other settings.

    Args:
        what: What was made.
        before: Value by dotted key then.
        now: The same now.
        may_change: Beginnings of keys that are not compared.
        cure: What to do, the end of the sentence.

    Raises:
        ConfigError: Naming the first key and both values.
    """
    if keys := changed(before, now, may_change):
        then, here = (
            f"{keys[0]}={x[keys[0]]}" if keys[0] in x else f"no {keys[0]}" for x in (before, now)
        )
        raise ConfigError(f"{what} was made with {then}, and has {here} now: {cure}")


def require_same_origin(
    what: object,
    before: Digests,
    now: Digests,
    cure: str = "remove that folder to have it made anew, or choose another --out.",
) -> None:
    """Refuse to continue from what was made from other files.

    Args:
        what: What was made.
        before: Digests that it holds; parts that it does not record are not compared.
        now: Digests of what is there.
        cure: What to do beside restoring them, the end of the sentence.

    Raises:
        ConfigError: Naming what changed.
    """
    if parts := changed_parts(before, now):
        raise ConfigError(
            f"{what} was made from other {' and '.join(sorted(parts))} than are there now: restore "
            f"them, {cure}"
        )


def flat_settings(content: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key → value of a training configuration without output, or of nested dictionaries."""
    if isinstance(content, TrainConfig):
        content = content.model_dump(mode="json", exclude={"output", "provenance"})
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        flat |= flat_settings(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


# ------------------------------------------------------------------ training


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
        then = flat_settings(load_config(contract["config"], root=TrainConfig))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration in {checkpoint / CONTRACT} cannot be read ({error}): restore the "
            "file, or start a new run with another --out."
        ) from error
    before = contract.get("made_from", {})
    unknown = {*before, *made_from} - {*known_parts(before, made_from)}
    same = {key for key, parts in BY_CONTENT.items() if unknown.isdisjoint(parts)}
    require_same(
        checkpoint, then, flat_settings(config), (*MAY_CHANGE, *same, *may_change), RESUMED
    )
    if not may_change and schedule_has_end(config.trainer):
        schedule = f"the rates of trainer.lr_scheduler_type={config.trainer['lr_scheduler_type']}"
        require_same(
            checkpoint,
            {"training.steps": then["training.steps"]},
            {"training.steps": config.training.steps},
            cure=f"{schedule} depend on it. Set it back, or start a new run from this checkpoint.",
        )
    require_same_origin(checkpoint, before, made_from, "or start a new run with another --out.")


def schedule_has_end(given: Content) -> bool:
    """Whether the rates of a run's steps depend on how many steps there will be.

    Args:
        given: The section `trainer`.

    Returns:
        False for rates that are constant, or constant after a warm-up of a number of steps.
    """
    schedule = given.get("lr_scheduler_type", "constant")
    shares = given.get("warmup_ratio") or 0 < (given.get("warmup_steps") or 0) < 1
    return schedule != "constant" and (schedule not in _WITHOUT_END or bool(shares))


def require_same_run(
    checkpoint: Path, saved: Content, now: Content, *, branched: bool = False
) -> None:
    """Refuse to resume from a checkpoint whose states are of other parameters, prompts or settings.

    Args:
        checkpoint: The checkpoint.
        saved: Its contract.
        now: The contract of the resumed run.
        branched: Whether it is another run that begins there, whose settings may differ.
    """
    keys = now.keys() & {*_STATES, *(() if branched else OF_THE_STEP)}
    then, here = (flat_settings({k: x[k] for k in keys & x.keys()}) for x in (saved, now))
    require_same(checkpoint, then, here, cure=RESUMED)


def changed_settings(then: Content, now: Content) -> dict[str, list[Any]]:
    """What a branch changes.

    Args:
        then: `flat_settings` of the parent.
        now: That of the branch.

    Returns:
        Key → both values.

    Raises:
        ConfigError: If a setting that a branch shares with its parent is another.
    """
    keys = changed(then, now)
    if fixed := [key for key in keys if key.startswith(FIXED)]:
        raise ConfigError(
            f"{fixed[0]} cannot change in a branch (it was {then.get(fixed[0])} and is "
            f"{now.get(fixed[0])}): the states it takes over depend on it. Start a new run instead."
        )
    return {key: [then.get(key), now.get(key)] for key in keys}


# ------------------------------------------------------------------ studies and evaluations


def require_same_measurement(target: Path, config: MeasureConfig, made_from: Digests) -> None:
    """Refuse results of a study's item that were made with other settings or from other files.

    Args:
        target: The folder of its results.
        config: Of this item alone, settled.
        made_from: Result of `origin.measurement_origin`.

    Raises:
        FileNotFoundError: If a file of the results is missing.
        ConfigError: Naming the setting, or what changed.
    """
    made_with = Result.load(target).provenance
    then, now = of_measurement(load_config(target / CONFIG)), of_measurement(config)
    require_same(target, then, now, PATHS if made_with.made_from else ())
    require_same_origin(target, made_with.made_from, made_from)
    if not made_with.made_from:
        log.warning("%s holds no digests of what it was made from, so files may differ.", target)
    for difference in content_differences(vars(made_with)):
        log.warning("%s was made with %s.", target, difference)


def require_same_evaluation(folder: Path, config: EvaluateConfig) -> None:
    """Refuse to go on in a folder with other settings than it was begun with.

    Raises:
        ConfigError: Naming the key and both values; or if the folder is of another kind.
    """
    if (file := folder / CONFIG).is_file():
        if "evaluation" not in read_yaml(file):
            raise ConfigError(f"{folder} holds something other than an evaluation: choose another.")
        then = of_evaluation(load_config(file, root=EvaluateConfig))
        require_same(folder, then, of_evaluation(config))
