"""What every checkpoint of a training run says of it, so that its step can be replayed."""

from __future__ import annotations

from typing import Any

from isentrope.config.control_options import contract_entry
from isentrope.config.train import TrainConfig
from isentrope.config.trl import advantages_of, objective_of, plain_objective_of
from isentrope.system.processes import world_size


def run_contract(
    config: TrainConfig,
    args: Any,
    *,
    eos_token_ids: list[int],
    replayable: bool,
    frozen_sha256: str,
    trainable: dict[str, list[int]],
    dataset_sha256: str,
    environment: dict[str, Any],
) -> dict[str, Any]:
    """The contract of a run; `args` is TRL's configuration."""
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
        "eos_token_ids": eos_token_ids,
        "temperature": config.sampling.temperature,
        "max_grad_norm": training.max_grad_norm or None,
        "prompts_per_step": training.prompts_per_step,
        "group_size": training.group_size,
        "micro_batch": args.per_device_train_batch_size // training.group_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "world_size": world_size(),
        "seed": training.seed,
        "sampler": "vllm" if args.use_vllm else "transformers",
        "replayable": replayable,
        "base_model": config.model.path,
        "frozen_sha256": frozen_sha256,
        "trainable": trainable,
        "dataset": config.data.dataset_name,
        "dataset_sha256": dataset_sha256,
        "environment": environment,
    }
