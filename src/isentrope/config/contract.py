"""What every checkpoint of a training run says of it, so that its step can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isentrope.config.control_options import contract_entry
from isentrope.config.train import TrainConfig
from isentrope.system.processes import world_size
from isentrope.trainers.arguments import SavedArguments
from isentrope.trainers.rules import obstacles_of
from isentrope.trainers.step import Use
from isentrope.update.objective import RECORDED


def run_contract(config: TrainConfig, args: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The contract of a run.

    Args:
        config: Its configuration.
        args: TRL's.
        facts: Entries that come of the model, the data and the machine.

    Returns:
        Its content.
    """
    training = config.training
    return {
        "schema": 1,
        "objective": objective_of(config),
        "plain_objective": plain_objective_of(config),
        "advantages": advantages_of(config),
        "control": contract_entry(config),
        "loss_type": args.loss_type,
        "normaliser": training.normaliser,
        "max_new_tokens": config.sampling.max_new_tokens,
        "temperature": config.sampling.temperature,
        "max_grad_norm": training.max_grad_norm or None,
        "prompts_per_step": training.prompts_per_step,
        "group_size": training.group_size,
        "micro_batch": args.per_device_train_batch_size // training.group_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "world_size": world_size(),
        "seed": training.seed,
        "sampler": "vllm" if args.use_vllm else "transformers",
        "base_model": config.model.path,
        "dataset": config.data.dataset_name,
        **facts,
    }


def objective_of(config: TrainConfig) -> str:
    """The objective of a run as `measure` knows it; "recorded" where no other name is exact."""
    return RECORDED if config.control.name != "none" else plain_objective_of(config)


def plain_objective_of(config: TrainConfig) -> str:
    """The name of what a run would optimise without its control."""
    loss = config.trainer.get("loss_type", "dr_grpo")
    trainer = SavedArguments("GRPOConfig", config.trainer)
    if obstacles_of(trainer, Use(loss)) or config.trainer.get("use_vllm"):
        return RECORDED
    return "dr_grpo_longest" if config.training.normaliser == "longest" else loss


def advantages_of(config: TrainConfig) -> str:
    """The rule by which a run makes advantages of rewards."""
    scaled = config.trainer.get("scale_rewards", "none") in ("group", True)
    return "grpo" if scaled else "dr_grpo"
