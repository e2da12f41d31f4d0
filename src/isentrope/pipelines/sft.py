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

from isentrope.config.paths import inputs_of
from isentrope.config.train import DemonstrationConfig, FineTuningConfig, ModelConfig, SftConfig
from isentrope.config.trl_sft import sft_options
from isentrope.files import write_bytes
from isentrope.pipelines.train import CONFIG
from isentrope.policy.language_model import Policy
from isentrope.policy.requirements import active_dropout
from isentrope.processes import barrier, gather, join_processes, rank
from isentrope.progress import Progress
from isentrope.runs.folder import differences, resolved, run_directory
from isentrope.runs.one_writer import one_writer
from isentrope.runs.room import require_disk
from isentrope.sampling.tasks.task import Demonstrator
from isentrope.training.demonstrations import encode
from isentrope.training.divergence import require_finite_state
from isentrope.training.models import find_model, load_trainable
from isentrope.training.run_files import RunFiles

MODEL = "model"
"""Folder of the model in a run folder."""


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
    """Fine-tune a model; returns its folder and the last loss."""
    from isentrope.training.supervised import save_model

    log, tuning = logging.getLogger("isentrope"), config.fine_tuning
    log.setLevel(config.output.log_level)
    for difference in differences(config.provenance or {}):
        log.warning("This configuration is of a run with %s.", difference)
    join_processes()
    files = RunFiles(gather(run_directory(config.output.directory))[0])
    with one_writer(files.folder, inputs_of(config)):
        _require_no_run(files.folder)
        require_paths(config.model, config.data)
        options = sft_options(config, files.folder)
        model, tokenizer = load_trainable(
            **config.model.model_dump(exclude={"shard_base"}), seed=tuning.seed
        )
        size = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        require_disk(files.folder, size, "Saving the model", "choose another --out")
        rows = _examples(config.data, tuning, model, tokenizer)
        if rank() == 0:
            files.rewind(-1)  # of a run that was stopped
        barrier()
        observe = _observer(tuning, files, progress or Progress())
        losses = _run(model, tokenizer, rows, options, observe, config.model.shard_base)
        require_finite_state(len(losses), model, None)
        if rank() == 0:
            save_model(model, tokenizer, (files.folder / MODEL).resolve())
            write_bytes(files.folder / CONFIG, resolved(config, files.folder))
        barrier()
    return FineTuned(files.folder / MODEL, losses[-1])


def require_paths(model: ModelConfig, data: DemonstrationConfig) -> None:
    """Refuse a configuration whose model or data are not there, before any work is done.

    Raises:
        FileNotFoundError: Naming the key and the path.
    """
    find_model(model.path)
    if data.dataset_path is not None and not Path(data.dataset_path).exists():
        raise FileNotFoundError(f"There is no file {data.dataset_path} (data.dataset_path).")


def _require_no_run(folder: Path) -> None:
    for name in (MODEL, "training_state", CONFIG):
        if (folder / name).exists():
            raise FileExistsError(
                f"{folder} holds a run already (it has {name}): choose another --out, or remove it."
            )
    barrier()  # none begins to write before all have looked


def _examples(
    data: DemonstrationConfig, tuning: FineTuningConfig, model: Any, tokenizer: Any
) -> dict[str, list[list[int]]]:
    """As many demonstrations as the run needs, encoded."""
    policy = Policy(model, tokenizer, precision="as_is")
    if dropout := active_dropout(model.train()):
        raise ValueError(
            f"{dropout[0]!r} has dropout, which would make the model random: set it to 0 in the "
            "model's config.json."
        )
    task = data.load_task(data.dataset_name, data.train_split, data.dataset_path, tokenizer)
    if not isinstance(task, Demonstrator):
        raise ValueError(f"The task {data.dataset_name!r} has no demonstrations to learn from.")
    pairs = task.demonstrations(tuning.steps * tuning.batch_size, tuning.seed)
    return encode(policy, pairs, tuning.max_length)


def _observer(
    tuning: FineTuningConfig, files: RunFiles, progress: Progress
) -> Callable[[dict[str, float]], None]:
    show = progress.fine_tuning(tuning.steps)

    def observe(metrics: dict[str, float]) -> None:
        if rank() == 0:
            files.log(metrics)
            show(metrics)
        for name, words in {"loss": "loss", "grad_norm": "gradient norm"}.items():
            if not math.isfinite(metrics.get(name, 0.0)):
                raise RuntimeError(
                    f"The {words} of step {metrics['step']} is {metrics[name]}, and no model was "
                    f"saved: lower fine_tuning.learning_rate={tuning.learning_rate:.3g}."
                )

    return observe


def _run(
    model: Any,
    tokenizer: Any,
    rows: dict[str, list[list[int]]],
    options: dict[str, Any],
    observe: Callable[[dict[str, float]], None],
    shard_base: bool,
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
        fine_tune_supervised(model, tokenizer, rows, options, keep, shard_base=shard_base)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU is full ({error}): lower fine_tuning.micro_batch (now "
            f"{options['per_device_train_batch_size']} demonstrations a backward pass), or set "
            "trainer.gradient_checkpointing=true."
        ) from error
    return losses
