"""May a training run be resumed? Its configuration is compared with the contract, key by key.

The contract of the newest checkpoint holds the configuration of the run and digests of its base
model and data. config.yaml may differ from it in settings that change no number of the run
(`MAY_CHANGE`), and in paths whose content is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from isentrope.config.io import ConfigError, load_config
from isentrope.config.paths import relative_to_run
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.runs.origin import (
    UNKNOWN,
    base_digests,
    changed_parts,
    checkpoint_digests,
    data_digest,
    known_parts,
    local_folder,
    task_digest,
    tokenizer_digest,
)
from isentrope.system.reading import read_json
from isentrope.trainers.arguments import TRAINING_ARGS, read_training_arguments
from isentrope.training.models import TOY, find_model

MAY_CHANGE = (
    *("training.steps", "training.keep_last", "training.keep_every", "output."),
    "model.allow_hub",
)
"""Settings that change no step of a run; training.steps only under a schedule without an end."""

BY_CONTENT = {"model.path": ("base weights", "weights"), "data.dataset_path": ("data",)}
"""Paths, and the parts of the contract's digests that say whether their content is the same."""

_WITHOUT_END = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules whose rates do not depend on how many steps there will be."""

_ARGUMENTS = [
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "optim_args",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "epsilon",
    "epsilon_high",
    "beta",
    "loss_type",
    "scale_rewards",
    "num_iterations",
]
"""Arguments of the trainer that are compared where a contract holds no configuration."""


def contract_config(config: TrainConfig, run: Path) -> dict[str, Any]:
    """The configuration as a contract holds it: all that makes the run what it is."""
    return _plain(relative_to_run(config, run, run))


def _plain(config: TrainConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude={"output", "provenance"})


def training_origin(config: TrainConfig | SftConfig) -> dict[str, str]:
    """Digests of what a run is made from: first model, tokenizer, data and the task's file."""
    data = config.data
    parts = {"data": data_digest(data.dataset_path), "task": task_digest(data.dataset_name)}
    if config.model.path == TOY:
        return parts
    folder = local_folder(find_model(config.model.path))
    if folder is not None and (folder / "adapter_config.json").is_file():
        adapter = checkpoint_digests(folder, allow_hub=config.model.allow_hub)
        del adapter["contract"]
        return parts | adapter
    tokenizer = UNKNOWN if folder is None else tokenizer_digest(folder)
    return parts | base_digests(folder, config.model.path) | {"tokenizer": tokenizer}


def require_same_training(
    checkpoint: Path,
    contract: Mapping[str, Any],
    config: TrainConfig,
    made_from: Mapping[str, str],
    changed: Collection[str] = (),
) -> None:
    """Refuse to resume a run with a configuration, a base model or data other than it had.

    Args:
        checkpoint: The checkpoint to resume from.
        contract: Its contract; one without a configuration is of an older version, and is compared
            as far as it goes by `recording.contract.require_same_run`.
        config: The configuration now.
        made_from: Result of `training_origin` now.
        changed: Keys that a branch changes here.

    Raises:
        ConfigError: Naming the key and both values, or what changed.
    """
    before = contract.get("made_from", {})
    known = known_parts(before, made_from)
    if "config" in contract:
        then, now = map(flat_settings, (_read(checkpoint, contract["config"]), config))
        named = {*before, *made_from}
        same = {k for k, parts in BY_CONTENT.items() if named.intersection(parts) <= {*known}}
        for key in sorted({*then, *now}):
            fixed = key not in {*same, *changed} and not key.startswith(MAY_CHANGE)
            if fixed and then.get(key) != now.get(key):
                raise ConfigError(
                    f"{checkpoint} was trained with {_words(key, then)}, and the configuration now "
                    f"has {_words(key, now)}: set it back to resume the run, or start a new run "
                    f"with another --out. {may_change()}"
                )
    if not changed:
        _require_same_schedule(checkpoint, contract, config)
    if others := changed_parts(before, made_from):
        raise ConfigError(
            f"{checkpoint} was trained from other {' and '.join(sorted(others))} than are there "
            "now: restore them to resume the run, or start a new run with another --out."
        )


def may_change() -> str:
    """What may change on resuming, as a sentence."""
    return (
        "On resuming, only training.steps, training.keep_last, training.keep_every and output.* "
        "may change."
    )


def require_same_arguments(checkpoint: Path, args: Any) -> None:
    """The comparison of a checkpoint whose contract holds no configuration, by training_args.bin.

    Raises:
        ConfigError: Naming the argument and both values.
    """
    file = checkpoint / TRAINING_ARGS
    if not file.is_file():
        return
    saved = read_training_arguments(file).fields
    for name in _ARGUMENTS:
        now = getattr(args, name, None)
        now = getattr(now, "value", now)
        if name in saved and saved[name] != now:
            raise ConfigError(
                f"{checkpoint} was trained with {name}={saved[name]} ({TRAINING_ARGS}), and the "
                f"configuration now gives {now}: set it back to resume the run. {may_change()}"
            )


def schedule_has_end(given: Mapping[str, Any]) -> bool:
    """Whether the rates of a run's steps depend on how many steps there will be.

    Args:
        given: The section `trainer`.

    Returns:
        False for rates that are constant, or constant after a warm-up of a number of steps.
    """
    schedule = given.get("lr_scheduler_type", "constant")
    shares = given.get("warmup_ratio") or 0 < (given.get("warmup_steps") or 0) < 1
    return schedule != "constant" and (schedule not in _WITHOUT_END or bool(shares))


def _require_same_schedule(
    checkpoint: Path, contract: Mapping[str, Any], config: TrainConfig
) -> None:
    """Refuse another number of steps where the learning rates of all steps depend on it."""
    if not schedule_has_end(config.trainer):
        return
    schedule = config.trainer["lr_scheduler_type"]
    state = read_json(checkpoint / "trainer_state.json", finite=False)
    saved = contract.get("config", {}).get("training", {}).get("steps", state.get("max_steps"))
    if saved is not None and saved != config.training.steps:
        raise ConfigError(
            f"{checkpoint} was trained with training.steps={saved}, and it is "
            f"{config.training.steps} now: the rates of trainer.lr_scheduler_type={schedule} "
            f"depend on it, so the steps taken would be another run's. Set it back to {saved}, or "
            "start a new run from this checkpoint's model."
        )


def _read(checkpoint: Path, content: Any) -> TrainConfig:
    try:
        return load_config(content, root=TrainConfig)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration in {checkpoint / 'contract.json'} cannot be read ({error}): the "
            "file is damaged, or of another version."
        ) from error


def flat_settings(content: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key → value of a configuration without output, or of nested dictionaries."""
    if isinstance(content, TrainConfig):
        content = _plain(content)
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        flat |= flat_settings(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _words(key: str, settings: Mapping[str, Any]) -> str:
    return f"{key}={settings[key]}" if key in settings else f"no {key}"
