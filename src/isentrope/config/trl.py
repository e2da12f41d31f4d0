"""TRL's configuration from ours: what we set, what may be passed through, and what may not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from isentrope.config.control_options import trainer_fields
from isentrope.config.io import ConfigError
from isentrope.config.train import TrainConfig
from isentrope.config.trl_fields import require_spreadable, trainer_options
from isentrope.system.processes import world_size
from isentrope.update.objective import OBJECTIVES, RECORDED

_UNFILTERED = "nothing: a filtered sampler is not the policy that is measured"
_NO_EVALUATION = "`isentrope evaluate`, which reads the checkpoints"
MANAGED_FIELDS = {
    "output_dir": "output.directory",
    "max_steps": "training.steps",
    "num_train_epochs": "training.steps",
    "learning_rate": "training.learning_rate",
    "per_device_train_batch_size": "training.micro_batch",
    "gradient_accumulation_steps": "training.micro_batch",
    "generation_batch_size": "training.prompts_per_step",
    "steps_per_generation": "training.prompts_per_step",
    "num_generations": "training.group_size",
    "max_completion_length": "sampling.max_new_tokens",
    "temperature": "sampling.temperature",
    "top_k": _UNFILTERED,
    "top_p": _UNFILTERED,
    "min_p": _UNFILTERED,
    "repetition_penalty": _UNFILTERED,
    "generation_kwargs": _UNFILTERED,
    "mask_truncated_completions": "nothing: a cut response counts, as it does in the entropy",
    "max_grad_norm": "training.max_grad_norm",
    "seed": "training.seed",
    "data_seed": "training.seed",
    "shuffle_dataset": "training.prompt_weighting",
    "save_steps": "training.save_every",
    "save_strategy": "training.save_every",
    "save_total_limit": "training.keep_last",
    "save_only_model": "nothing: a checkpoint without its optimizer has no next step",
    "trust_remote_code": "nothing: code that comes with a model is not run",
    "resume_from_checkpoint": "`isentrope train --resume RUN`",
    "logging_steps": "nothing: every step is logged",
    "logging_strategy": "nothing: every step is logged",
    "logging_first_step": "nothing: every step is logged",
    "report_to": "output.report_to",
    "disable_tqdm": "nothing: progress is shown on a terminal",
    "log_completions": "output.rollouts_every",
    "disable_dropout": "nothing: an update with dropout could not be replayed",
    "eval_strategy": _NO_EVALUATION,
    "eval_steps": _NO_EVALUATION,
    "eval_on_start": _NO_EVALUATION,
}


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
    training, on_cpu = config.training, not torch.cuda.is_available()
    given = trainer_options(config.trainer, GRPOConfig, MANAGED_FIELDS)
    require_spreadable(config.model, given)
    micro_batch, accumulation = _sizes(config)
    _require_fit(config, given)
    of_control = trainer_fields(config)
    fixed = {
        "output_dir": str(checkpoints),
        "max_steps": training.steps,
        "learning_rate": training.learning_rate,
        "per_device_train_batch_size": micro_batch * training.group_size,
        "gradient_accumulation_steps": accumulation,
        "num_generations": training.group_size,
        "max_completion_length": config.sampling.max_new_tokens,
        "temperature": config.sampling.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "save_strategy": "steps",
        "save_steps": training.save_every,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": list(config.output.report_to) or "none",
        "shuffle_dataset": False,
        "disable_dropout": True,
    }
    usual = {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "beta": 0.0,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": on_cpu,
        "ddp_find_unused_parameters": False,
    } | ({"ddp_backend": "gloo"} if on_cpu and world_size() > 1 else {})
    options: dict[str, Any] = usual | given | of_control | fixed
    return GRPOConfig(**options)


def _sizes(config: TrainConfig) -> tuple[int, int]:
    """Prompt groups per backward pass on each process, and passes per step."""
    training, processes = config.training, world_size()
    share, left = divmod(training.prompts_per_step, processes)
    if left:
        raise ConfigError(
            f"training.prompts_per_step={training.prompts_per_step} cannot be shared evenly by "
            f"{processes} processes."
        )
    micro_batch = training.micro_batch or share
    if share % micro_batch:
        raise ConfigError(
            f"Each of {processes} processes has {share} prompt groups per step, which is not a "
            f"multiple of training.micro_batch={micro_batch}."
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


REWEIGHTING: dict[str, tuple[Any, ...]] = {
    "beta": (0,),
    "entropy_coef": (0,),
    "use_adaptive_entropy": (False,),
    "top_entropy_quantile": (1,),
    "off_policy_mask_threshold": (),
    "num_iterations": (1,),
    "use_vllm": (False,),
    "reward_weights": ([1.0], (1.0,)),
    "multi_objective_aggregation": ("sum_then_normalize",),
}
"""TRL's options that make token weights other than w_i A_i, and the values that do not; None never
does. Others act beside them only (`use_bias_correction_kl`), or not while every ratio is 1."""


def reweighting_options(trainer: Mapping[str, Any]) -> list[str]:
    """The options of TRL under which no objective's name is exact."""
    given = {name: value for name, value in trainer.items() if value is not None}
    acting = [n for n, usual in REWEIGHTING.items() if n in given and given[n] not in usual]
    return acting + (["delta"] if given.get("delta", 1.0) < 1 else [])


def objective_of(config: TrainConfig) -> str:
    """The objective of a run as `measure` knows it; "recorded" where no other name is exact."""
    return RECORDED if config.control.name != "none" else plain_objective_of(config)


def plain_objective_of(config: TrainConfig) -> str:
    """The name of what a run would optimise without its control."""
    loss = config.trainer.get("loss_type", "dr_grpo")
    if loss not in OBJECTIVES or reweighting_options(config.trainer):
        return RECORDED
    return "dr_grpo_longest" if config.training.normaliser == "longest" else loss


def advantages_of(config: TrainConfig) -> str:
    """The rule by which a run makes advantages of rewards."""
    scaled = config.trainer.get("scale_rewards", "none") in ("group", True)
    return "grpo" if scaled else "dr_grpo"
