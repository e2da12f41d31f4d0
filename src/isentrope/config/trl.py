"""TRL's configurations from ours: fields that a run sets, and those of the section `trainer`."""

import os
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from isentrope.checkpoint.infer.harmless import SCHEDULE_OPTIONS
from isentrope.checkpoint.infer.passed import SHARDING, managed_fields
from isentrope.config.control_fields import trainer_fields
from isentrope.config.io import ConfigError
from isentrope.config.train import ModelConfig, SftConfig, TrainConfig
from isentrope.config.trl_fields import trainer_options
from isentrope.system.extras import MissingPackageError
from isentrope.system.processes import on_one_gpu, one_process, world_size

TRL_CLASSES = {
    "train": "trl.trainer.grpo_config:GRPOConfig",
    "sft": "trl.trainer.sft_config:SFTConfig",
}
"""The configuration of TRL of each verb that trains."""


def shards_weights(fields: Mapping[str, Any]) -> bool:
    """Whether a `trainer` section, or accelerate's launcher, shards the weights."""
    variables = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    return any(fields.get(name) for name in SHARDING) or any(
        os.environ.get(name, "").lower() in ("1", "true") for name in variables
    )


def training_device(fields: Mapping[str, Any], *, has_gpu: bool | None = None) -> str:
    """The device that a run with a `trainer` section trains on; None: as this machine has one."""
    available = _has_gpu() if has_gpu is None else has_gpu
    return "cuda" if available and not fields.get("use_cpu") else "cpu"


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def planned_fields(fields: Mapping[str, Any]) -> list[bool]:
    """What a plan depends on in a `trainer` section: reference, recomputation, bf16."""
    return [bool(fields.get(name)) for name in ("beta", "gradient_checkpointing", "bf16")]


def require_spreadable(model: ModelConfig, fields: Mapping[str, Any]) -> None:
    """Refuse to spread a base where that is not possible, before anything is loaded.

    Args:
        model: The section `model`.
        fields: The section `trainer`.

    Raises:
        ConfigError: If there is one process, no adapter, or another sharding, or vLLM samples.
    """
    if not model.shard_base:
        return
    if world_size() == 1:
        raise ConfigError(one_process("model.shard_base"))
    if model.lora_rank == 0:
        raise ConfigError("model.shard_base needs an adapter: set model.lora_rank.")
    if shards_weights(fields):
        raise ConfigError("model.shard_base does not go with FSDP or DeepSpeed: choose one.")
    if fields.get("use_vllm"):
        raise ConfigError("model.shard_base does not go with trainer.use_vllm: choose one.")


def draws_by_vllm(trainer: Mapping[str, Any]) -> bool:
    """Whether vLLM draws the responses of a run.

    Args:
        trainer: The section `trainer` of its configuration.

    Returns:
        True if it does.
    """
    return bool(trainer.get("use_vllm"))


def grpo_options(config: TrainConfig, checkpoints: Path) -> Any:
    """TRL's configuration of a run.

    Returns:
        A GRPOConfig.

    Raises:
        MissingPackageError: If TRL is not installed.
        ConfigError: If the sizes do not fit the number of processes, or a passed field does not
            fit the rest.
    """
    training = config.training
    grpo_config, passed = _check_passed(config)
    groups_per_pass, passes = passed_to_grpo(config, passed)
    usual = {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "beta": 0.0,
        "lr_scheduler_type": "constant",
        "ddp_find_unused_parameters": False,
    }
    fixed = {
        "per_device_train_batch_size": groups_per_pass * training.group_size,
        "gradient_accumulation_steps": passes,
        "num_generations": training.group_size,
        "max_completion_length": config.sampling.max_new_tokens,
        "temperature": config.sampling.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "max_grad_norm": training.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": training.save_every,
        "shuffle_dataset": False,
        "disable_dropout": True,
    }
    options = _add_run_fields(config, training, checkpoints, usual, passed) | fixed
    return on_one_gpu(grpo_config(**options))


def sft_options(config: SftConfig, folder: Path) -> dict[str, Any]:
    """Fields of TRL's SFTConfig.

    Returns:
        Keyword arguments.

    Raises:
        MissingPackageError: If TRL is not installed.
        ConfigError: If the batch cannot be shared by the processes in micro-batches.
    """
    tuning = config.fine_tuning
    _, passed = _check_passed(config)
    micro_batch, passes = demonstrations_per_pass(config)
    usual = {"lr_scheduler_type": "cosine", "weight_decay": 0.01}
    fixed = {
        "warmup_steps": tuning.warmup_steps,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": passes,
        "max_length": None,  # too long is an error, not cut
        "save_strategy": "no" if tuning.save_every is None else "steps",
        "save_steps": tuning.save_every or tuning.steps,
        "train_sampling_strategy": "sequential",
    }
    return _add_run_fields(config, tuning, folder, usual, passed) | fixed


def passed_to_grpo(config: TrainConfig, passed: dict[str, Any]) -> tuple[int, int]:
    """Add the control's fields to those that are passed; prompt groups per pass, and passes."""
    training = config.training
    divided = _divide_batch(
        "training.prompts_per_step", training.prompts_per_step, training.groups_per_pass
    )
    passed |= trainer_fields(config)
    _require_fit(config, passed)
    return divided


def demonstrations_per_pass(config: SftConfig) -> tuple[int, int]:
    """Demonstrations per pass, and passes."""
    tuning = config.fine_tuning
    return _divide_batch("fine_tuning.batch_size", tuning.batch_size, tuning.micro_batch)


def verb_of(config: TrainConfig | SftConfig) -> Literal["train", "sft"]:
    """The verb that a configuration is of."""
    return "train" if isinstance(config, TrainConfig) else "sft"


def _check_passed(config: TrainConfig | SftConfig) -> tuple[Any, dict[str, Any]]:
    """The configuration class of TRL, and what the section `trainer` passes to it, checked."""
    verb = verb_of(config)
    try:
        options_class = resolve_name(TRL_CLASSES[verb])
    except ImportError as error:
        raise MissingPackageError("trl", "Training") from error
    passed = trainer_options(config.trainer, options_class, managed_fields(verb))
    require_spreadable(config.model, passed)
    return options_class, passed


def _add_run_fields(
    config: TrainConfig | SftConfig,
    section: Any,
    folder: Path,
    usual: dict[str, Any],
    passed: dict[str, Any],
) -> dict[str, Any]:
    """The usual fields, those that are passed otherwise, and those that no run may change."""
    on_cpu = not _has_gpu()
    usual |= {"bf16": False, "gradient_checkpointing": False, "use_cpu": on_cpu}
    if on_cpu and world_size() > 1:
        usual["ddp_backend"] = "gloo"
    _require_schedule(usual | passed)
    return {
        **usual,
        **passed,
        "output_dir": str(folder),
        "max_steps": section.steps,
        "learning_rate": section.learning_rate,
        "seed": section.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": list(config.output.report_to) or "none",
    }


def _require_schedule(fields: Mapping[str, Any]) -> None:
    """Refuse options of a schedule that it does not have, which would end training at its start."""
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
    from transformers.trainer_utils import SchedulerType

    kind = SchedulerType(fields.get("lr_scheduler_type", "linear"))
    options = fields.get(SCHEDULE_OPTIONS) or {}
    if isinstance(options, str):  # as JSON, which TRL parses
        return
    parameters = signature(TYPE_TO_SCHEDULER_FUNCTION[kind]).parameters
    if "kwargs" in parameters:  # of a scheduler of torch, which refuses by its own words
        return
    computed = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    takes = parameters.keys() - computed
    if unknown := sorted(options.keys() - takes):
        raise ConfigError(
            f"trainer.{SCHEDULE_OPTIONS}: the schedule {kind.value!r} has no option "
            f"{unknown[0]!r}: it has {', '.join(sorted(takes)) or 'none'}."
        )


def _divide_batch(key: str, total: int, chosen: int | None) -> tuple[int, int]:
    """Size of a backward pass on each process, and passes per step."""
    share, remainder = divmod(total, world_size())
    micro_batch = chosen or share
    if remainder or share % micro_batch:
        raise ConfigError(
            f"{key}={total} cannot be shared evenly by {world_size()} processes in micro-batches "
            f"of {micro_batch}."
        )
    return micro_batch, share // micro_batch


def _require_fit(config: TrainConfig, passed: dict[str, Any]) -> None:
    uses = passed.get("num_iterations", 1)
    if config.training.save_every % uses:
        raise ConfigError(
            f"training.save_every={config.training.save_every} is not a multiple of "
            f"trainer.num_iterations={uses}: a checkpoint in the middle of a batch's uses could "
            "not be resumed exactly."
        )
    if passed.get("scale_rewards", "none") not in ("none", "group", False, True):
        raise ConfigError("trainer.scale_rewards must be none or group.")
    longest = config.training.normaliser == "longest"
    if longest and passed.get("loss_type", "dr_grpo") != "dr_grpo":
        raise ConfigError("training.normaliser=longest goes with trainer.loss_type=dr_grpo only.")
