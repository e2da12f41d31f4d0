"""TRL's configurations from ours: the fields that a run sets, and those that it passes through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from isentrope.config.control_options import trainer_fields
from isentrope.config.io import ConfigError
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl_fields import require_spreadable, trainer_options
from isentrope.system.processes import world_size
from isentrope.trainers.passed import managed_fields


def grpo_options(config: TrainConfig, checkpoints: Path) -> Any:
    """TRL's configuration of a run.

    Returns:
        A GRPOConfig.

    Raises:
        ImportError: If TRL is missing.
        ConfigError: If the sizes do not fit the number of processes, or a passed field does not
            fit the rest.
    """
    try:
        from trl.trainer.grpo_config import GRPOConfig
    except ImportError as error:
        raise ImportError("Training needs TRL: pip install 'isentrope[train]'.") from error
    training = config.training
    given = trainer_options(config.trainer, GRPOConfig, managed_fields("train"))
    require_spreadable(config.model, given)
    micro_batch, passes = _micro_batches(
        "training.prompts_per_step", training.prompts_per_step, training.micro_batch
    )
    of_control = trainer_fields(config)
    _require_fit(config, given | of_control)
    usual = {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "beta": 0.0,
        "lr_scheduler_type": "constant",
        "ddp_find_unused_parameters": False,
    }
    fixed = {
        "per_device_train_batch_size": micro_batch * training.group_size,
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
    ours = _of_every_run(config, training, checkpoints) | fixed
    return GRPOConfig(**(_usual() | usual | given | of_control | ours))


def sft_options(config: SftConfig, folder: Path) -> dict[str, Any]:
    """Fields of TRL's SFTConfig.

    Returns:
        Keyword arguments.

    Raises:
        ImportError: If TRL is missing.
        ConfigError: If the batch cannot be shared by the processes in micro-batches.
    """
    try:
        from trl.trainer.sft_config import SFTConfig
    except ImportError as error:
        raise ImportError("Fine-tuning needs TRL: pip install 'isentrope[train]'.") from error
    tuning = config.fine_tuning
    given = trainer_options(config.trainer, SFTConfig, managed_fields("sft"))
    require_spreadable(config.model, given)
    micro_batch, passes = _micro_batches(
        "fine_tuning.batch_size", tuning.batch_size, tuning.micro_batch
    )
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
    return _usual() | usual | given | _of_every_run(config, tuning, folder) | fixed


def _usual() -> dict[str, Any]:
    """Fields of every run that `trainer` may set otherwise."""
    on_cpu = not torch.cuda.is_available()
    usual = {"bf16": False, "gradient_checkpointing": False, "use_cpu": on_cpu}
    return usual | ({"ddp_backend": "gloo"} if on_cpu and world_size() > 1 else {})


def _of_every_run(config: TrainConfig | SftConfig, section: Any, folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": section.steps,
        "learning_rate": section.learning_rate,
        "seed": section.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": list(config.output.report_to) or "none",
    }


def _micro_batches(key: str, total: int, given: int | None) -> tuple[int, int]:
    """Size of a backward pass on each process, and passes per step."""
    share, left = divmod(total, world_size())
    micro_batch = given or share
    if left or share % micro_batch:
        raise ConfigError(
            f"{key}={total} cannot be shared evenly by {world_size()} processes in micro-batches "
            f"of {micro_batch}."
        )
    return micro_batch, share // micro_batch


def _require_fit(config: TrainConfig, given: dict[str, Any]) -> None:
    uses = given.get("num_iterations", 1)
    if config.training.save_every % uses:
        raise ConfigError(
            f"training.save_every={config.training.save_every} is not a multiple of "
            f"trainer.num_iterations={uses}: a checkpoint in the middle of a batch's uses could "
            "not be resumed exactly."
        )
    if given.get("scale_rewards", "none") not in ("none", "group", False, True):
        raise ConfigError("trainer.scale_rewards must be none or group.")
    longest = config.training.normaliser == "longest"
    if longest and given.get("loss_type", "dr_grpo") != "dr_grpo":
        raise ConfigError("training.normaliser=longest goes with trainer.loss_type=dr_grpo only.")
