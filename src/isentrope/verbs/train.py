"""What `isentrope train` does: set a run up from its configuration, or again from its folder."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from isentrope.checkpoint.record.contract import read_contract
from isentrope.config.paths import inputs_of
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import shards_weights
from isentrope.parallel.ranks import from_first
from isentrope.planning.plan import DoesNotFitError
from isentrope.run.begun import begun_settings, branched_settings, require_no_run
from isentrope.run.branch import Branch, begin_branch
from isentrope.run.folder import prepare_log, resolved_content, run_directory
from isentrope.run.identity import CONFIG
from isentrope.run.lock import noted_if_interrupted, one_writer
from isentrope.run.origin import training_origin
from isentrope.run.resuming import require_same_training
from isentrope.system.files import write_bytes
from isentrope.system.log import log
from isentrope.system.manifest import verify
from isentrope.system.memory import is_lack_of_memory
from isentrope.system.processes import barrier, join_processes, rank
from isentrope.training.checkpoints import StopAt
from isentrope.training.divergence import TrainingDivergedError
from isentrope.training.resumable import require_resumable
from isentrope.training.rollout_digests import rollout_faults
from isentrope.training.run_files import RunFiles
from isentrope.training.tensorboard import continue_tensorboard
from isentrope.verbs.prepare_training import prepare_training

_Config = TypeVar("_Config", TrainConfig, SftConfig)

MISMATCH = "do not match the ones in the `trainer_state.json`"
"""In the warning of transformers where a setting is not that of the checkpoint."""


def train(config: TrainConfig) -> Path:
    """Start a run.

    Args:
        config: What to train, and how.

    Returns:
        The run folder.

    Raises:
        FileExistsError: If the folder holds a run.
    """
    join_processes()
    files = RunFiles(run_directory(config.output.directory))
    with one_writer(files.folder, inputs_of(config)):
        require_no_run(files, TrainConfig)
        barrier()  # all processes look before any of them writes
        trainer = prepare_training(config, files)
        if rank() == 0:
            write_bytes(files.folder / CONFIG, resolved_content(config, files.folder))
        return _run(trainer, files, None)


def branch(
    checkpoint: str | Path,
    overrides: Iterable[str] = (),
    *,
    until: int | None = None,
) -> Path:
    """Start a run at a checkpoint of another run, with settings changed.

    Args:
        checkpoint: A folder RUN/training_state/step_N.
        overrides: Settings of the new run; `output.directory` is one of them.
        until: Step to stop at, with a checkpoint; None for the last one.

    Returns:
        The new run folder.

    Raises:
        FileNotFoundError: If there is no such checkpoint.
        FileExistsError: If the folder holds a run.
        ConfigError: If a setting is changed that the parent's states depend on, or that leaves no
            step to take.
        ValueError: If no folder is given, or the checkpoint lacks a state.
    """
    join_processes()
    start, parent, config, changed = branched_settings(checkpoint, overrides)
    files = RunFiles(str(config.output.directory))
    with one_writer(files.folder, [start, *inputs_of(config)]):
        require_no_run(files, TrainConfig)
        barrier()
        from_first(lambda: begin_branch(start, parent, files, changed))
        new = config.model_copy(update={"provenance": None})
        return _go_on(files, new, until)


def resume(
    folder: str | Path,
    overrides: Iterable[str] = (),
    *,
    until: int | None = None,
) -> Path:
    """Resume a run from its newest checkpoint, bit-for-bit identically.

    Args:
        folder: The run folder.
        overrides: Settings that may change (`run.resuming.MAY_CHANGE`), and paths whose
            content is the same.
        until: Step to stop at, with a checkpoint; None for the last one.

    Returns:
        The run folder.

    Raises:
        FileNotFoundError: If the folder holds no run.
        ConfigError: If another setting is to be changed.
    """
    files = RunFiles(folder)
    with resumed(files, overrides, TrainConfig) as config:
        return _go_on(files, config, until)


@contextmanager
def resumed(files: RunFiles, overrides: Iterable[str], kind: type[_Config]) -> Iterator[_Config]:
    """Hold the folder of a run that goes on.

    Args:
        files: The run's.
        overrides: Settings that change.
        kind: Of its configuration.

    Yields:
        The configuration.

    Raises:
        FileNotFoundError: If the folder holds no run.
        ConfigError: If another setting is to be changed.
    """
    changes = list(overrides)
    begun_settings(files, changes, kind)  # nothing is locked in a folder without a run
    join_processes()
    with one_writer(files.folder):
        config = begun_settings(files, changes, kind)
        prepare_log(config, "The run was begun")
        yield config


@contextmanager
def under_way(files: RunFiles, verb: str, smaller: str) -> Iterator[None]:
    """Say how to resume a run that is stopped, and what to lower where memory is short.

    Args:
        files: The run's.
        verb: Its name on the command line.
        smaller: Settings that take less memory.

    Yields:
        Nothing.

    Raises:
        DoesNotFitError: If the memory is full.
        TrainingDivergedError: If it stops at a number that is not finite.
        Exception: What else stops it.
    """

    def kept() -> str | None:
        how = f"Resume it by `isentrope {verb} --resume {files.folder}`."
        return f"Nothing before {last} is lost. {how}" if (last := files.latest()) else None

    try:
        with noted_if_interrupted(kept):
            yield
    except TrainingDivergedError:
        raise  # a run resumed from the last checkpoint would end the same way
    except Exception as error:  # raised again: the run may be resumed after any
        if sentence := kept():
            log.warning("The run stopped. %s", sentence)
        if not is_lack_of_memory(error):
            raise
        raise DoesNotFitError(
            f"The memory is full ({error}): lower {smaller}, or set "
            "trainer.gradient_checkpointing=true."
        ) from error


def _go_on(files: RunFiles, config: TrainConfig, until: int | None) -> Path:
    files.require_known_names()
    checkpoint = files.latest()
    last_step = max(files.steps(), default=0)
    if checkpoint is not None:
        sharded = shards_weights(config.trainer)
        scaled = bool(config.trainer.get("fp16"))
        require_resumable(checkpoint, sharded=sharded, scaled=scaled)
        verify(checkpoint)
        origin = training_origin(config)
        begun = Branch.at(files, last_step)
        changed = () if begun is None else tuple(begun.changed)
        require_same_training(checkpoint, read_contract(checkpoint), config, origin, changed)
        files.require_whole_log(last_step)
        for sentence in rollout_faults(files, last_step) if rank() == 0 else ():
            log.warning("%s", sentence)
    if last_step >= min(config.training.steps, until or config.training.steps):
        log.info("The run has done its %d steps.", last_step)
        return files.folder
    trainer = prepare_training(config, files, checkpoint)
    continue_tensorboard(trainer, files.folder, last_step)
    if until is not None:
        trainer.add_callback(StopAt(until))
    barrier()
    if rank() == 0:
        files.rewind(last_step)
        write_bytes(
            files.folder / CONFIG,
            resolved_content(config, files.folder, provenance=config.provenance),
        )
    barrier()
    return _run(trainer, files, checkpoint)


def _run(trainer: Any, files: RunFiles, checkpoint: Path | None) -> Path:
    if checkpoint is not None:
        begun = Branch.at(files, max(files.steps()))
        trainer.restore(checkpoint, None if begun is None else begun.changed)
        log.info("Resuming from %s.", checkpoint)
    smaller = (
        f"training.micro_batch (now {trainer.args.per_device_train_batch_size} sequences per "
        "backward pass) or sampling.batch_size"
    )
    with under_way(files, "train", smaller), _silence_comparison():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return files.folder


@contextmanager
def _silence_comparison() -> Iterator[None]:
    """Leave out transformers' comparison with the checkpoint: what differs was asked for, and acts.

    Settings that may not differ were refused before.
    """
    log = logging.getLogger("transformers.trainer_utils")

    def is_other(record: logging.LogRecord) -> bool:
        return MISMATCH not in record.getMessage()

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)
