"""What `isentrope sft` does: fine-tune a model on a task's demonstrations, and save it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

from isentrope.experiments.config_io import ConfigError, dump_config
from isentrope.experiments.progress import Progress
from isentrope.experiments.run_folder import require_new, run_directory, versions, write_bytes
from isentrope.experiments.train import CONFIG, join_processes
from isentrope.experiments.train_config import SftConfig
from isentrope.experiments.trainer_options import trainer_options
from isentrope.policy.fitness import active_dropout
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks import load_task
from isentrope.training.models import load_trainable
from isentrope.training.processes import barrier, gather, rank, world_size
from isentrope.training.run_files import RunFiles

TAKEN = {
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
    "disable_tqdm": "nothing: progress is shown on a terminal",
    "train_sampling_strategy": "fine_tuning.seed",
    "packing": "nothing: each demonstration is a sequence of its own",
    "completion_only_loss": "nothing: the loss is on the response alone",
    "assistant_only_loss": "nothing: the loss is on the response alone",
}


def sft(config: SftConfig, *, progress: Progress | None = None) -> Path:
    """Fine-tune a model.

    Args:
        config: What to fine-tune, and how.
        progress: Where to say how far it is.

    Returns:
        The folder of the model.

    Raises:
        ValueError: If the model has dropout, or the task has no demonstrations.
    """
    logging.getLogger("isentrope").setLevel(config.output.log_level)
    join_processes()
    files = RunFiles(gather(run_directory(config.output.directory))[0])
    target = files.folder / "model"
    require_new(target)
    barrier()
    options = sft_options(config, files)
    from isentrope.training.supervised import Demonstrator, encode, fine_tune_supervised, save_model

    tuning, data = config.fine_tuning, config.data
    model, tokenizer = load_trainable(**config.model.model_dump(), seed=tuning.seed)
    policy = Policy(model, tokenizer, precision="as_is")
    if dropout := active_dropout(model.train()):
        raise ValueError(
            f"{dropout[0]!r} has dropout, which would make the model random: set it to 0."
        )
    task = load_task(data.dataset_name, data.train_split, data.dataset_path, tokenizer=tokenizer)
    if not isinstance(task, Demonstrator):
        raise ValueError(f"The task {data.dataset_name!r} has no demonstrations to learn from.")
    shown = task.demonstrations(tuning.steps * tuning.batch_size, tuning.seed)
    examples = encode(policy, shown, tuning.max_length)
    say = (progress or Progress()).fine_tuning(tuning.steps)

    def observe(metrics: dict[str, float]) -> None:
        files.log(metrics)
        say(metrics)

    files.rewind(-1)
    fine_tune_supervised(model, tokenizer, examples, options, observe)
    if rank() == 0:
        made_with = {"provenance": versions()}
        write_bytes(
            files.folder / CONFIG, dump_config(config.model_copy(update=made_with)).encode()
        )
        save_model(model, tokenizer, target.resolve())
    barrier()
    return target


def sft_options(config: SftConfig, files: RunFiles) -> dict[str, Any]:
    """Fields of TRL's SFTConfig.

    Args:
        config: Ours.
        files: The run's files.

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
    given = trainer_options(config.trainer, SFTConfig, TAKEN)
    share, left = divmod(tuning.batch_size, world_size())
    micro_batch = tuning.micro_batch or share
    if left or share % micro_batch:
        raise ConfigError(
            f"fine_tuning.batch_size={tuning.batch_size} cannot be shared by {world_size()} "
            f"processes in micro-batches of {micro_batch}."
        )
    if "tensorboard" in config.output.report_to:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(files.folder / "tensorboard")
    usual = {
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.01,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": on_cpu,
        "save_strategy": "no",
    } | ({"ddp_backend": "gloo"} if on_cpu and world_size() > 1 else {})
    fixed = {
        "output_dir": str(files.folder),
        "max_steps": tuning.steps,
        "learning_rate": tuning.learning_rate,
        "warmup_steps": tuning.warmup_steps,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": share // micro_batch,
        "max_length": None,  # too long is an error, not cut
        "seed": tuning.seed,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": list(config.output.report_to) or "none",
    }
    return usual | given | fixed
