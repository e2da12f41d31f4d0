"""What `isentrope evaluate` does: checkpoints on a task, in chunks that survive a kill.

The prompts of a checkpoint are cut into chunks. A chunk is sampled, scored, rewarded and written
whole; processes of torchrun take chunks by turns. Any order, any number of processes and any
restart give the same files. When all chunks of a checkpoint are there, the first process reads them
back and computes the numbers.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from isentrope.config.evaluate import (
    EvaluateConfig,
    EvaluationData,
    EvaluationOutput,
    EvaluationSampling,
)
from isentrope.config.measure import PolicyConfig
from isentrope.config.values import inputs_of
from isentrope.evaluation.metrics import metric_names
from isentrope.evaluation.vllm_engine import VllmEngine, require_vllm
from isentrope.runs.checkpoints import Checkpoint, find_checkpoints
from isentrope.runs.evaluation_folder import EvaluationResult, StepFolder, write_evaluations
from isentrope.runs.folder import folder_name, heed, one_writer, resolved_content
from isentrope.runs.identity import CONFIG, require_same_evaluation
from isentrope.runs.origin import Digests, evaluation_origin
from isentrope.runs.study import other_base, require_one_model
from isentrope.system.files import write_bytes
from isentrope.system.manifest import verification
from isentrope.system.processes import barrier, gather, join_processes, rank, world_size
from isentrope.verbs.evaluation_work import Sections, Work

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


def evaluate_checkpoints(config: EvaluateConfig) -> Evaluated:
    """Evaluate every checkpoint of a configuration, or resume where it was stopped."""
    heed(config, "This configuration is of an evaluation")
    join_processes()
    with verification(config.checkpoint.verify):
        checkpoints = require_evaluation_inputs(config.checkpoint, config.data, config.sampling)
    profile, first = config.evaluation, checkpoints[0]
    directory = evaluation_directory(config.output, config.data.dataset_name, first)
    folder = gather(directory)[0]
    with one_writer(folder, inputs_of(config)), verification(config.checkpoint.verify):
        require_same_evaluation(folder, config)
        engine = None
        if config.sampling.engine == "vllm":
            engine = VllmEngine(
                first.path,
                base_model=config.checkpoint.base_model,
                allow_hub=config.checkpoint.allow_hub,
                dtype=config.precision.sampling.runtime_dtype,
                temperature=config.sampling.temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                memory=config.sampling.vllm_memory,
                seed=profile.seed,
            )
        of = Sections(
            config.checkpoint, config.data, profile, config.precision, config.sampling, engine
        )
        content = resolved_content(config, folder, seeds={"evaluation": profile.seed})
        names = metric_names(profile.chosen, profile.tries)
        results, table = [], folder
        for checkpoint in checkpoints:
            made_from = evaluation_origin(config, checkpoint.path)
            _require_base(checkpoint, made_from, config.checkpoint.base_model)
            step = StepFolder(folder / checkpoint.name, made_from)
            results.append(_evaluate(checkpoint, step, of, content))
            if rank() == 0:
                table = write_evaluations(folder, results, names)
        barrier()
        return Evaluated(folder, table, results)


def require_evaluation_inputs(
    where: PolicyConfig, data: EvaluationData, sampling: EvaluationSampling
) -> list[Checkpoint]:
    """Refuse a configuration whose files are not there or do not belong together.

    Returns:
        The checkpoints.

    Raises:
        FileNotFoundError: If the data set is not there.
    """
    data.require_files()
    checkpoints = find_checkpoints(where)
    require_one_model(checkpoints, where.base_model)
    if sampling.engine == "vllm":
        require_vllm([c.path for c in checkpoints], world_size())
    return checkpoints


def _require_base(checkpoint: Checkpoint, made_from: Digests, base_model: str | None) -> None:
    """Refuse a base model other than training's, unless it was chosen."""
    for other in other_base(checkpoint.path, made_from):
        if base_model is None:
            raise ValueError(
                f"{checkpoint.path} cannot be evaluated as trained: {other.words}. Restore the "
                "base model, or set checkpoint.base_model to evaluate on this one all the same."
            )
        log.warning("%s: %s.", checkpoint.path, other.words)


def evaluation_directory(output: EvaluationOutput, dataset: str, first: Checkpoint) -> Path:
    """The folder of an evaluation, of which `first` is the first checkpoint; not made yet."""
    if output.directory:
        return Path(output.directory)
    path = first.path.resolve()
    run = path.parent.parent if path.parent.name == "training_state" else path
    return Path("eval_runs") / folder_name(f"{output.name or run.name}_{dataset}")


def _evaluate(
    checkpoint: Checkpoint,
    step: StepFolder,
    of: Sections,
    content: bytes,
) -> EvaluationResult:
    step.require_same_origin()
    if step.result() is None:
        log.info("evaluating %s", checkpoint.path)
        work = Work(checkpoint, step, of)  # refuses what it can before any file
        barrier()
        if rank() == 0:
            write_bytes(step.path.parent / CONFIG, content)
            step.begin()
        barrier()
        work.make_chunks()
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
