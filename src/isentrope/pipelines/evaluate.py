"""What `isentrope evaluate` does: checkpoints on a task, in chunks that survive a kill.

The prompts of a checkpoint are cut into chunks. A chunk is sampled, scored, rewarded and written
whole; processes of torchrun take chunks by turns. Any order, any number of processes and any
restart give the same files. When all chunks of a checkpoint are there, the first process reads them
back and computes the numbers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from isentrope.config.evaluate import EvaluateConfig
from isentrope.evaluation.metrics import metric_names
from isentrope.evaluation.vllm_engine import VllmEngine, require_vllm
from isentrope.files import write_bytes
from isentrope.pipelines.evaluation_work import Work
from isentrope.pipelines.train import join_processes
from isentrope.processes import barrier, gather, rank, world_size
from isentrope.progress import Progress
from isentrope.runs.checkpoints import Checkpoint, find_checkpoints
from isentrope.runs.evaluated_models import require_one_model
from isentrope.runs.evaluation_folder import StepFolder, write_table
from isentrope.runs.evaluation_result import EvaluationResult
from isentrope.runs.folder import differences, resolved
from isentrope.runs.one_writer import one_writer
from isentrope.runs.resume import CONFIG, evaluation_origin, require_same_evaluation

log = logging.getLogger("isentrope")


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation made.

    Attributes:
        folder: Its folder.
        table: The consolidated table.
        results: In the order of the checkpoints.
    """

    folder: Path
    table: Path
    results: list[EvaluationResult]


def evaluate_checkpoints(config: EvaluateConfig, *, progress: Progress | None = None) -> Evaluated:
    """Evaluate every checkpoint of a configuration, or resume where it was stopped."""
    log.setLevel(config.output.log_level)
    for difference in differences(config.provenance or {}):
        log.warning("This configuration is of an evaluation with %s.", difference)
    join_processes()
    checkpoints = require_evaluation_inputs(config)
    folder = gather(evaluation_directory(config, checkpoints))[0]
    with one_writer(folder):
        require_same_evaluation(folder, config)
        engine = _engine(config, checkpoints)
        names = metric_names(config.evaluation.chosen, config.evaluation.tries)
        results, table = [], folder
        for checkpoint in checkpoints:
            results.append(_evaluate(config, checkpoint, folder, engine, progress or Progress()))
            if rank() == 0:
                table = write_table(folder, results, names)
        barrier()
        return Evaluated(folder, table, results)


def require_evaluation_inputs(config: EvaluateConfig) -> list[Checkpoint]:
    """Refuse a configuration whose files are not there or do not belong together.

    Args:
        config: What to evaluate.

    Returns:
        The checkpoints.

    Raises:
        FileNotFoundError: If the data set is not there.
    """
    path = config.data.dataset_path
    if path is not None and not Path(path).exists():
        raise FileNotFoundError(f"There is no file {path} (data.dataset_path).")
    checkpoints = find_checkpoints(config.checkpoint)
    require_one_model(checkpoints, config.checkpoint.base_model)
    if config.sampling.engine == "vllm":
        require_vllm([c.path for c in checkpoints], world_size())
    return checkpoints


def evaluation_directory(config: EvaluateConfig, checkpoints: list[Checkpoint]) -> Path:
    """The folder that a configuration names; it is not made yet."""
    if config.output.directory:
        return Path(config.output.directory)
    first = checkpoints[0].path.resolve()
    run = first.parent.parent if first.parent.name == "training_state" else first
    return Path("eval_runs") / f"{config.output.name or run.name}_{config.data.dataset_name}"


def _engine(config: EvaluateConfig, checkpoints: list[Checkpoint]) -> VllmEngine | None:
    if config.sampling.engine == "transformers":
        return None
    return VllmEngine(
        checkpoints[0].path,
        base_model=config.checkpoint.base_model,
        dtype=config.precision.sampling.runtime_dtype,
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        memory=config.sampling.vllm_memory,
        seed=config.evaluation.seed,
    )


def _evaluate(
    config: EvaluateConfig,
    checkpoint: Checkpoint,
    folder: Path,
    engine: VllmEngine | None,
    progress: Progress,
) -> EvaluationResult:
    made_from = evaluation_origin(config, checkpoint.path)
    step = StepFolder(folder / checkpoint.name, made_from)
    step.require_same_origin()
    if step.result() is None:
        log.info("evaluating %s", checkpoint.path)
        work = Work(config, checkpoint, step, engine)  # refuses what it can before any file
        barrier()
        if rank() == 0:
            seeds = {"evaluation": config.evaluation.seed}
            write_bytes(folder / CONFIG, resolved(config, seeds=seeds))
            step.begin()
        barrier()
        work.make_chunks(progress)
        barrier()
        if rank() == 0:
            step.finish(*work.consolidated())
        barrier()
    else:
        log.info("%s is done already", checkpoint.name)
        step.remove_chunks()
    done = step.result()
    assert done is not None
    return done
