"""TRL's configuration of a fine-tuning from ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from isentrope.config.io import ConfigError
from isentrope.config.train import SftConfig
from isentrope.config.trl_fields import require_spreadable, trainer_options
from isentrope.system.processes import world_size

_TOKENS_ARE_OURS = "nothing: demonstrations are token ids before TRL sees them"
_ALL_LOGGED = "nothing: every step is logged"
_NO_EVALUATION = "`isentrope measure`, which reads the model"

MANAGED_FIELDS = {
    "output_dir": "output.directory",
    "max_steps": "fine_tuning.steps",
    "num_train_epochs": "fine_tuning.steps",
    "learning_rate": "fine_tuning.learning_rate",
    "warmup_steps": "fine_tuning.warmup_steps",
    "per_device_train_batch_size": "fine_tuning.micro_batch",
    "gradient_accumulation_steps": "fine_tuning.micro_batch",
    "max_length": "fine_tuning.max_length",
    "seed": "fine_tuning.seed",
    "data_seed": "fine_tuning.seed",
    "report_to": "output.report_to",
    "save_strategy": "fine_tuning.save_every",
    "save_steps": "fine_tuning.save_every",
    "save_total_limit": "nothing: every checkpoint is kept",
    "save_only_model": "nothing: a run is resumed from the optimizer's state",
    "resume_from_checkpoint": "`isentrope sft --resume RUN`",
    "logging_steps": _ALL_LOGGED,
    "logging_strategy": _ALL_LOGGED,
    "logging_first_step": _ALL_LOGGED,
    "logging_nan_inf_filter": "nothing: a loss that is not a number ends the run",
    "eval_strategy": _NO_EVALUATION,
    "eval_steps": _NO_EVALUATION,
    "eval_on_start": _NO_EVALUATION,
    "disable_tqdm": "nothing: progress is shown on a terminal",
    "train_sampling_strategy": "fine_tuning.seed",
    "shuffle_dataset": "fine_tuning.seed",
    "model_init_kwargs": "the section model",
    "trust_remote_code": "nothing: code that comes with a model is not run",
    "chat_template_path": _TOKENS_ARE_OURS,
    "dataset_text_field": _TOKENS_ARE_OURS,
    "dataset_kwargs": _TOKENS_ARE_OURS,
    "dataset_num_proc": _TOKENS_ARE_OURS,
    "eos_token": _TOKENS_ARE_OURS,
    "truncation_mode": "nothing: a demonstration that is too long is an error",
    "packing": "nothing: each demonstration is a sequence of its own",
    "packing_strategy": "nothing: each demonstration is a sequence of its own",
    "completion_only_loss": "nothing: the loss is on the response alone",
    "assistant_only_loss": "nothing: the loss is on the response alone",
}


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
    tuning, on_cpu = config.fine_tuning, not torch.cuda.is_available()
    given = trainer_options(config.trainer, SFTConfig, MANAGED_FIELDS)
    require_spreadable(config.model, given)
    share, left = divmod(tuning.batch_size, world_size())
    micro_batch = tuning.micro_batch or share
    if left or share % micro_batch:
        raise ConfigError(
            f"fine_tuning.batch_size={tuning.batch_size} cannot be shared by {world_size()} "
            f"processes in micro-batches of {micro_batch}."
        )
    usual = {
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.01,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": on_cpu,
    } | ({"ddp_backend": "gloo"} if on_cpu and world_size() > 1 else {})
    fixed = {
        "output_dir": str(folder),
        "max_steps": tuning.steps,
        "learning_rate": tuning.learning_rate,
        "warmup_steps": tuning.warmup_steps,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": share // micro_batch,
        "max_length": None,  # too long is an error, not cut
        "seed": tuning.seed,
        "save_strategy": "no" if tuning.save_every is None else "steps",
        "save_steps": tuning.save_every or tuning.steps,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": list(config.output.report_to) or "none",
    }
    return usual | given | fixed
