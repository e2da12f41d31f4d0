"""May what is there be continued? Settings are compared by key, files by digests of their content.

File times are not looked at, and neither is where files lie: a folder that was copied, touched or
moved continues, and one that holds other content is refused by the name of what changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, all_keys, load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.results.result import RESULTS
from isentrope.results.results import load_result
from isentrope.runs.folder import content_differences
from isentrope.runs.origin import (
    changed_parts,
    checkpoint_digests,
    data_digest,
    digest_of,
    optimizer_digest,
    task_digest,
)

log = logging.getLogger("isentrope")

CONFIG = "config.yaml"

MAY_CHANGE = (
    "output.",
    "checkpoint.device_map",
    "checkpoint.allow_hub",
    "checkpoint.verify",
    "sampling.batch_size",
    "sampling.max_tokens",
    "sampling.vocab_chunk",
    "sampling.vllm_memory",
)
"""Settings of an evaluation that decide speed and memory, and may be others after a restart."""

_OF_MEASURE = {
    "data": "batch_config.dataset_path",
    "data of U": "batch_config.U_dataset_path",
    "E_file": "batch_config.E_file",
    "U_file": "batch_config.U_file",
}
_PATHS = {
    *("checkpoint.checkpoint_path", "checkpoint.optimizer_path", "checkpoint.base_model"),
    *("data.dataset_path", *_OF_MEASURE.values()),
}
"""Settings that are paths, whose content is compared instead."""


def measurement_origin(config: MeasureConfig, checkpoint: Path, optimizer: Path) -> dict[str, str]:
    """Digests, by part, of what the results of one item of a study are made from."""
    settings, batch, where = _of_measurement(config), config.batch_config, config.checkpoint
    parts = checkpoint_digests(checkpoint, where.base_model, allow_hub=where.allow_hub)
    parts["optimizer"] = optimizer_digest(optimizer)
    parts |= {part: data_digest(settings[key]) for part, key in _OF_MEASURE.items()}
    parts["task"] = task_digest(batch.dataset_name, batch.U_dataset_name)
    return parts | {"settings": _settings_digest(config, settings)}


def evaluation_origin(config: EvaluateConfig, checkpoint: Path) -> dict[str, str]:
    """Digests, by part, of what the evaluation of one checkpoint is made from."""
    settings = {k: v for k, v in _of_evaluation(config).items() if not k.startswith(MAY_CHANGE)}
    where = config.checkpoint
    return checkpoint_digests(checkpoint, where.base_model, allow_hub=where.allow_hub) | {
        "data": data_digest(config.data.dataset_path),
        "task": task_digest(config.data.dataset_name),
        "settings": _settings_digest(config, settings),
    }


def require_same_origin(what: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to continue from results that were made from something else.

    Args:
        what: The results.
        before: Digests that they hold; parts that an older version did not record are not compared.
        now: Digests of what is there.

    Raises:
        ValueError: Naming what changed.
    """
    if changed := changed_parts(before, now):
        raise ValueError(
            f"{what} was made from other {' and '.join(changed)} than are there now: restore them, "
            "remove that folder to have it made anew, or choose another --out."
        )


def require_same_measurement(
    target: Path, config: MeasureConfig, made_from: Mapping[str, str]
) -> None:
    """Refuse results of a study's item that were made with other settings or from other files.

    Args:
        target: The folder of its results.
        config: Of this item alone, settled.
        made_from: Result of `measurement_origin`.

    Raises:
        FileNotFoundError: If a file of the results is missing.
        ValueError: Naming the setting, or what changed.
    """
    for needed in (RESULTS, CONFIG):
        if not (target / needed).is_file():
            raise FileNotFoundError(f"{target} has no {needed}: remove it, or choose --out.")
    made_with = load_result(target).provenance
    before = made_with.made_from
    then, now = _of_measurement(load_config(target / CONFIG)), _of_measurement(config)
    by_content = _PATHS if before else set()
    other = [key for key in now if key not in by_content and then.get(key) != now[key]]
    if other:
        raise ValueError(
            f"{target} was made with {other[0]}={then.get(other[0])}, and "
            f"{now[other[0]]} is asked for now: choose another --out for the new settings, or "
            "remove it."
        )
    require_same_origin(target, before, made_from)
    if not before:
        log.warning(
            "%s holds no digests of what it was made from, as older versions wrote it: it is taken "
            "to be of the files that are there now.",
            target,
        )
    for difference in content_differences(vars(made_with)):
        log.warning("%s was made with %s.", target, difference)


def require_same_evaluation(folder: Path, config: EvaluateConfig) -> None:
    """Refuse to go on in a folder with other settings than it was begun with.

    Raises:
        ConfigError: Naming the key and both values; or if the folder is of another kind, or holds
            results and no configuration.
    """
    file = folder / CONFIG
    if not file.is_file():
        if any((*folder.glob("*/metrics.json"), *folder.glob("*/.chunks"))):
            raise ConfigError(
                f"{folder} holds results and no {CONFIG} that says what they are of: restore it, "
                "or choose another --out."
            )
        return
    content = read_yaml(file)
    if "evaluation" not in content:
        raise ConfigError(
            f"{folder} holds something other than an evaluation: choose another --out."
        )
    then = _of_evaluation(load_config(content, root=EvaluateConfig))
    now = _of_evaluation(config)
    for key in now:
        if then[key] != now[key] and not key.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{folder} was begun with {key}={then[key]}, and it is {now[key]} now: set it back "
                "to go on, or choose another --out."
            )


def _of_measurement(config: MeasureConfig) -> dict[str, Any]:
    """Every key that moves a number, the checkpoint by its resolved path."""
    sections = config.model_dump(exclude={"output", "provenance", "detailed_logging"})
    flat = {f"{s}.{k}": value for s, keys in sections.items() for k, value in keys.items()}
    for permission in ("allow_hub", "allow_mixed", "verify"):
        del flat[f"checkpoint.{permission}"]
    where = Path(str(flat["checkpoint.checkpoint_path"])).expanduser()
    return flat | {"checkpoint.checkpoint_path": str(where.resolve())}


def _of_evaluation(config: EvaluateConfig) -> dict[str, Any]:
    """Dotted key → value, of paths the last part alone."""
    content = config.model_dump(mode="json")
    pairs = [key.split(".") for key in all_keys(EvaluateConfig) if "." in key]
    flat = {f"{section}.{key}": content[section][key] for section, key in pairs}
    return flat | {key: _names(flat[key]) for key in _PATHS if key in flat}


def _names(paths: str | list[str] | None) -> Any:
    if isinstance(paths, list):
        return [Path(path).name for path in paths]
    return None if paths is None else Path(paths).name


def _settings_digest(config: BaseModel, settings: Mapping[str, Any]) -> str:
    """Digest of the settings that are not defaults: a version with more keys continues."""
    chosen = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        field = type(getattr(config, section)).model_fields[name]
        if key not in _PATHS and value != field.get_default(call_default_factory=True):
            chosen[key] = value
    return digest_of(chosen)
