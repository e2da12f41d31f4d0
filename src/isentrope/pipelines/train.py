"""What `isentrope train` does: set a run up from its configuration, or again from its folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.files import write_bytes
from isentrope.manifest import verify
from isentrope.pipelines.prepare_training import prepare_training
from isentrope.processes import barrier, gather, join_processes, rank
from isentrope.progress import Progress
from isentrope.recording.contract import read_contract
from isentrope.runs.folder import differences, noted_if_interrupted, resolved, run_directory
from isentrope.runs.one_writer import one_writer
from isentrope.runs.resumed_training import (
    BY_CONTENT,
    MAY_CHANGE,
    may_change,
    require_same_training,
    training_origin,
)
from isentrope.training.divergence import TrainingDivergedError
from isentrope.training.resumable import require_resumable
from isentrope.training.run_files import RunFiles

CONFIG = "config.yaml"


def train(config: TrainConfig, *, progress: Progress | None = None) -> Path:
    """Start a run.

    Args:
        config: What to train, and how.
        progress: Where to say how far it is.

    Returns:
        The run folder.

    Raises:
        FileExistsError: If the folder holds a run.
    """
    join_processes()
    files = RunFiles(gather(run_directory(config.output.directory))[0])
    with one_writer(files.folder):
        if (files.folder / CONFIG).exists():
            raise FileExistsError(
                f"{files.folder} holds a run: resume it by `isentrope train --resume "
                f"{files.folder}`, or choose another --out."
            )
        barrier()
        trainer = prepare_training(config, files, progress or Progress())
        if rank() == 0:
            write_bytes(files.folder / CONFIG, resolved(config, files.folder))
        return _run(trainer, files, None)


def resume(
    folder: str | Path, overrides: Iterable[str] = (), *, progress: Progress | None = None
) -> Path:
    """Resume a run from its newest checkpoint, bit-for-bit identically.

    Args:
        folder: The run folder.
        overrides: Settings that may change (`runs.resumed_training.MAY_CHANGE`), and paths whose
            content is the same.
        progress: Where to say how far it is.

    Returns:
        The run folder.

    Raises:
        FileNotFoundError: If the folder holds no run.
        ConfigError: If another setting is to be changed.
    """
    files, changes = RunFiles(folder), list(overrides)
    if not (files.folder / CONFIG).is_file():
        raise FileNotFoundError(f"{files.folder} holds no run: it has no {CONFIG}.")
    allowed = (*MAY_CHANGE, *BY_CONTENT)
    if fixed := [change for change in changes if not change.startswith(allowed)]:
        raise ConfigError(f"{fixed[0]} would make it another run. {may_change()}")
    join_processes()
    with one_writer(files.folder):
        return _resume(files, changes, progress or Progress())


def _resume(files: RunFiles, changes: list[str], progress: Progress) -> Path:
    config = load_config(files.folder / CONFIG, changes, root=TrainConfig)
    for difference in differences(config.provenance or {}):
        logging.getLogger("isentrope").warning("The run was begun with %s.", difference)
    files.require_known_names()
    checkpoint, done = files.latest(), max(files.steps(), default=0)
    if checkpoint is not None:
        sharded, scaled = _sharded(config.trainer), bool(config.trainer.get("fp16"))
        require_resumable(checkpoint, sharded=sharded, scaled=scaled)
        verify(checkpoint)
        origin = training_origin(config)
        require_same_training(checkpoint, read_contract(checkpoint), config, origin)
        files.require_whole_log(done)
    if done >= config.training.steps:
        logging.getLogger("isentrope").info("The run has done its %d steps.", done)
        return files.folder
    trainer = prepare_training(config, files, progress, checkpoint)
    barrier()
    if rank() == 0:
        files.rewind(done)
        write_bytes(
            files.folder / CONFIG, resolved(config, files.folder, provenance=config.provenance)
        )
    barrier()
    return _run(trainer, files, checkpoint)


def _sharded(fields: Mapping[str, Any]) -> bool:
    launched = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    given = any(fields.get(name) for name in ("fsdp", "deepspeed"))
    return given or any(os.environ.get(name, "").lower() in ("1", "true") for name in launched)


def _run(trainer: Any, files: RunFiles, checkpoint: Path | None) -> Path:
    log = logging.getLogger("isentrope")
    if checkpoint is not None:
        trainer.restore(checkpoint)
        log.info("Resuming from %s.", checkpoint)
    how = f"Resume the run by `isentrope train --resume {files.folder}`."
    try:
        with noted_if_interrupted(lambda: how):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"The GPU is full ({error}): lower training.micro_batch (now "
            f"{trainer.contract['micro_batch']} prompt groups per backward pass) or "
            "sampling.batch_size, or set trainer.gradient_checkpointing=true."
        ) from error
    except TrainingDivergedError:
        raise  # a run resumed from the last checkpoint would end the same way
    except Exception:
        if last := files.latest():
            log.warning(
                "The run stopped; nothing before %s is lost. Resume it by `isentrope train "
                "--resume %s`.",
                last,
                files.folder,
            )
        raise
    return files.folder
