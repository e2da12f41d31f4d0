"""Whether a training can be begun, by its settings, sources and folders alone."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from isentrope.checkpoint.infer.fields import PACKAGES_OF_FIELDS
from isentrope.checkpoint.infer.passed import managed_fields
from isentrope.config.io import ConfigError
from isentrope.config.strict_yaml import brief
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import (
    TRL_CLASSES,
    demonstrations_per_pass,
    draws_by_vllm,
    passed_to_grpo,
    require_spreadable,
    verb_of,
)
from isentrope.config.trl_fields import require_fields, trackers_in_source, types_in_source
from isentrope.models.base_model import require_positions
from isentrope.models.trainable import require_trainable_model
from isentrope.sampling.tasks.early_task import require_references_of
from isentrope.sampling.tasks.requirements import require_demonstrations
from isentrope.system.extras import require_packages
from isentrope.training.enough_prompts import require_keys, require_step

_PACKAGES_OF_TRACKERS = {"azure_ml": "azureml", "flyte": "flytekit"}
"""Packages of trackers that are not called as these."""


def require_trainable(config: TrainConfig | SftConfig) -> None:
    """Refuse settings of which no trainer can be made, as far as they and sources tell.

    Args:
        config: Of the run.

    Raises:
        ConfigError: If a field of TRL is unknown or does not fit, or settings do not fit each
            other.
        FileNotFoundError: If there is no such model.
        ValueError: If the model cannot be trained so.
    """
    require_fields_of_trainer(config)
    require_spreadable(config.model, config.trainer)
    if draws_by_vllm(config.trainer):
        require_vllm_to_train()
    _require_trackers(config.output.report_to)
    _require_installed(config.trainer)
    if isinstance(config, TrainConfig):
        passed_to_grpo(config, dict(config.trainer))
    else:
        demonstrations_per_pass(config)
    _require_prompts(config)
    model = config.model
    source, base = require_trainable_model(
        model.path, model.lora_rank, model.lora_alpha, allow_hub=model.allow_hub
    )
    if isinstance(config, TrainConfig):
        require_positions(base or source, config.sampling.max_new_tokens)
    else:
        data = config.data
        require_demonstrations(data.dataset_name, data.dataset_path)


def _require_prompts(config: TrainConfig | SftConfig) -> None:
    """Refuse data that the task does not understand, and prompts that are too few for a step."""
    data = config.data
    tasks = {split: data.early_task(name, split, path) for name, path, split in data.tasks()}
    task = tasks[data.train_split]
    if task is None or isinstance(config, SftConfig):
        return
    require_keys([prompt.key for prompt in task.prompts])
    require_step(config.training.prompts_per_step, len(task.prompts))
    require_references_of(data.dataset_name, task.prompts)


def require_fields_of_trainer(config: TrainConfig | SftConfig) -> None:
    """Refuse fields of the section `trainer` that TRL does not have, as far as its sources tell.

    Args:
        config: Of the run.

    Raises:
        ConfigError: Naming the field.
    """
    verb = verb_of(config)
    types = types_in_source(TRL_CLASSES[verb]) if config.trainer else None
    if types is not None:
        name = TRL_CLASSES[verb].partition(":")[2]
        require_fields(config.trainer, name, types, managed_fields(verb))


def _require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that transformers does not know, or whose package is not installed."""
    if "tensorboard" in names and not (_is_there("tensorboard") or _is_there("tensorboardX")):
        require_packages(("tensorboard",), "output.report_to=[tensorboard]")
    keywords = [name for name in names if name in ("all", "none")]
    if keywords and len(names) > 1:
        raise ConfigError(
            f"output.report_to: {keywords[0]!r} stands alone: omit the others, or it."
        )
    external = [name for name in names if name not in ("tensorboard", "all", "none")]
    trackers = trackers_in_source() if external else None
    for name in external:
        if trackers and name not in trackers:
            nearest = get_close_matches(name, trackers, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"output.report_to: {name!r} is no tracker that transformers knows: the nearest is "
                f"{nearest!r}, and [] is none."
            )
        package = _PACKAGES_OF_TRACKERS.get(name, name)
        if not _is_there(package):
            raise ConfigError(
                f"output.report_to: {name} needs the package {package}, which is not installed: "
                "install it, or leave it out ([] is none)."
            )


def _require_installed(fields: Mapping[str, Any]) -> None:
    """Refuse fields of the section `trainer` whose package is not installed."""
    needed = {name: package for name, package in PACKAGES_OF_FIELDS.items() if fields.get(name)}
    optimizer = str(fields.get("optim", ""))
    if "bnb" in optimizer or optimizer.startswith("paged_"):
        needed["optim"] = "bitsandbytes"
    for name, package in needed.items():
        if not _is_there(package):
            raise ConfigError(
                f"trainer.{name}={brief(fields[name])} needs the package {package}, which is not "
                "installed: install it, or leave the field out."
            )


def _is_there(package: str) -> bool:
    """Whether a package is installed; it is not imported."""
    return find_spec(package) is not None


def require_vllm_to_train() -> None:
    """Refuse vLLM where it is not installed.

    Raises:
        ConfigError: With what to do.
    """
    if not _is_there("vllm"):
        raise ConfigError(
            "trainer.use_vllm=true, and vLLM is not installed: `pip install 'trl[vllm]'`, or leave "
            "it out, and transformers samples."
        )
