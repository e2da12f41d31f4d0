"""What `isentrope sft` does: fine-tune a model on a task's demonstrations, and save it.

<run folder>/model/              the model or the adapter, with its tokenizer; whole or absent
<run folder>/config.yaml         resolved; running it again makes the same model, bit for bit
<run folder>/logs/metrics.jsonl  step, loss, learning_rate, grad_norm; no times
<run folder>/tensorboard/        where output.report_to has it
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isentrope.config.io import ConfigError
from isentrope.config.train import DemonstrationConfig, ModelConfig, SftConfig
from isentrope.config.trl_fields import trainer_options
from isentrope.files import write_bytes
from isentrope.pipelines.train import CONFIG, join_processes
from isentrope.policy.language_model import Policy
from isentrope.policy.requirements import active_dropout
from isentrope.processes import barrier, gather, rank, world_size
from isentrope.progress import Progress
from isentrope.runs.folder import differences, resolved, run_directory
from isentrope.runs.one_writer import one_writer
from isentrope.sampling.tasks.task import Demonstrator
from isentrope.training.demonstrations import encode
from isentrope.training.divergence import require_finite_state
from isentrope.training.models import find_model, load_trainable
from isentrope.training.run_files import RunFiles

MODEL = "model"
"""Folder of the model in a run folder."""

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
    "resume_from_checkpoint": "nothing: a fine-tuning is run from its beginning",
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


@dataclass(frozen=True)
class FineTuned:
    """What a run of `sft` made.

    Attributes:
        model: Folder of the model.
        loss: Mean surprisal of the last step's demonstrations before that step, nats per token.
    """

    model: Path
    loss: float


def sft(config: SftConfig, *, progress: Progress | None = None) -> FineTuned:
    """Fine-tune a model.

    Args:
        config: What to fine-tune, and how.
        progress: Where to say how far it is.

    Returns:
        The folder of the model, and the last loss.
    """
    log = logging.getLogger("isentrope")
    log.setLevel(config.output.log_level)
    for difference in differences(config.provenance or {}):
        log.warning("This configuration is of a run with %s.", difference)
    join_processes()
    files = RunFiles(gather(run_directory(config.output.directory))[0])
    with one_writer(files.folder):
        return _fine_tune(config, files, progress)


def _fine_tune(config: SftConfig, files: RunFiles, progress: Progress | None) -> FineTuned:
    _require_no_run(files.folder)
    require_paths(config.model, config.data)
    options = sft_options(config, files.folder)
    model, tokenizer = load_trainable(**config.model.model_dump(), seed=config.fine_tuning.seed)
    rows = _examples(config, model, tokenizer)
    if rank() == 0:
        files.rewind(-1)  # of a run that was stopped
    barrier()
    losses = _run(model, tokenizer, rows, options, _observer(config, files, progress))
    require_finite_state(len(losses), model, None)
    if rank() == 0:
        _save(config, model, tokenizer, files.folder)
    barrier()
    return FineTuned(files.folder / MODEL, losses[-1])


def require_paths(model: ModelConfig, data: DemonstrationConfig) -> None:
    """Refuse a configuration whose model or data are not there, before any work is done.

    Args:
        model: The section `model`.
        data: The section `data`.

    Raises:
        FileNotFoundError: Naming the key and the path.
    """
    find_model(model.path)
    if data.dataset_path is not None and not Path(data.dataset_path).exists():
        raise FileNotFoundError(f"There is no file {data.dataset_path} (data.dataset_path).")


def sft_options(config: SftConfig, folder: Path) -> dict[str, Any]:
    """Fields of TRL's SFTConfig.

    Args:
        config: Ours.
        folder: The run folder.

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
        "save_strategy": "no",
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
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": list(config.output.report_to) or "none",
    }
    return usual | given | fixed


def _require_no_run(folder: Path) -> None:
    for name in (MODEL, "training_state", CONFIG):
        if (folder / name).exists():
            raise FileExistsError(
                f"{folder} holds a run already (it has {name}): choose another --out, or remove it."
            )
    barrier()  # none begins to write before all have looked


def _examples(config: SftConfig, model: Any, tokenizer: Any) -> dict[str, list[list[int]]]:
    """As many demonstrations as the run needs, encoded."""
    tuning, data = config.fine_tuning, config.data
    policy = Policy(model, tokenizer, precision="as_is")
    if dropout := active_dropout(model.train()):
        raise ValueError(
            f"{dropout[0]!r} has dropout, which would make the model random: set it to 0 in the "
            "model's config.json."
        )
    task = data.load_task(data.dataset_name, data.train_split, data.dataset_path, tokenizer)
    if not isinstance(task, Demonstrator):
        raise ValueError(f"The task {data.dataset_name!r} has no demonstrations to learn from.")
    shown = task.demonstrations(tuning.steps * tuning.batch_size, tuning.seed)
    return encode(policy, shown, tuning.max_length)


def _observer(
    config: SftConfig, files: RunFiles, progress: Progress | None
) -> Callable[[dict[str, float]], None]:
    say = (progress or Progress()).fine_tuning(config.fine_tuning.steps)

    def observe(metrics: dict[str, float]) -> None:
        if rank() == 0:
            files.log(metrics)
            say(metrics)
        for name, words in {"loss": "loss", "grad_norm": "gradient norm"}.items():
            if not math.isfinite(metrics.get(name, 0.0)):
                raise RuntimeError(
                    f"The {words} of step {metrics['step']} is {metrics[name]}, and no model was "
                    "saved: lower fine_tuning.learning_rate="
                    f"{config.fine_tuning.learning_rate:.3g}."
                )

    return observe


def _run(
    model: Any,
    tokenizer: Any,
    rows: dict[str, list[list[int]]],
    options: dict[str, Any],
    observe: Callable[[dict[str, float]], None],
) -> list[float]:
    """Train, and return the loss of every step."""
    from isentrope.training.supervised import fine_tune_supervised

    if "tensorboard" in options["report_to"]:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(Path(options["output_dir"]) / "tensorboard")
    losses: list[float] = []

    def keep(metrics: dict[str, float]) -> None:
        losses.append(metrics["loss"])
        observe(metrics)

    try:
        fine_tune_supervised(model, tokenizer, rows, options, keep)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU is full ({error}): lower fine_tuning.micro_batch (now "
            f"{options['per_device_train_batch_size']} demonstrations a backward pass), or set "
            "trainer.gradient_checkpointing=true."
        ) from error
    return losses


def _save(config: SftConfig, model: Any, tokenizer: Any, folder: Path) -> None:
    """The model, and the configuration."""
    from isentrope.training.supervised import save_model

    save_model(model, tokenizer, (folder / MODEL).resolve())
    write_bytes(folder / CONFIG, resolved(config))
