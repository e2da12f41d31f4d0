"""What `isentrope evaluate` does: checkpoints on a task, in chunks that survive a kill.

The prompts of a checkpoint are cut into chunks. A chunk is sampled, scored, rewarded and written
whole; processes of torchrun take chunks by turns. Any order, any number of processes and any
restart give the same files. When all chunks of a checkpoint are there, the first process reads them
back and computes the numbers.

What a chunk holds depends on the settings and its number alone: the stream of random numbers runs
over all prompts in order, and passes over the chunks that another process or an earlier run made.
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from isentrope.checkpoint.checkpoint import Checkpoint, find_checkpoints
from isentrope.config.evaluate import (
    EvaluateConfig,
    EvaluationData,
    EvaluationSampling,
)
from isentrope.config.measure import PolicyConfig
from isentrope.config.values import inputs_of
from isentrope.evaluation.evaluate import require_format, score_records
from isentrope.evaluation.metrics import estimate_metrics
from isentrope.evaluation.responses import (
    TOKENS,
    Decoding,
    choose_prompts,
    draw_responses,
    random_numbers,
    skip_random_numbers,
)
from isentrope.evaluation.vllm_engine import VllmEngine, require_vllm
from isentrope.policy.language_model import Policy
from isentrope.run.evaluation_folder import (
    TABLE,
    EvaluatedRow,
    EvaluationResult,
    RewardCounts,
    StepFolder,
    table_of,
)
from isentrope.run.folder import folder_name, heed, one_writer, resolved_content
from isentrope.run.identity import CONFIG, require_same_evaluation
from isentrope.run.origin import evaluation_origin
from isentrope.run.study import other_base, require_one_model
from isentrope.sampling.prompts import Prompt, require_room
from isentrope.sampling.tasks import Task
from isentrope.system.file_contents import csv
from isentrope.system.files import write_bytes
from isentrope.system.manifest import verification, verifying
from isentrope.system.processes import all_ranks, barrier, gather, join_processes, rank, world_size
from isentrope.system.progress import progress
from isentrope.verbs.batches import at_precision

SCHEMA = "isentrope/evaluate/1"

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
    """Evaluate every checkpoint of a configuration, or resume where it was stopped.

    Args:
        config: What is evaluated, and how.

    Returns:
        The numbers, and where they are.

    Raises:
        ValueError: If a base model is other than training's, and was not chosen.
    """
    heed(config, "This configuration is of an evaluation")
    join_processes()
    with verification(config.checkpoint.verify):
        checkpoints = require_evaluation_inputs(config.checkpoint, config.data, config.sampling)
        profile, first = config.evaluation, checkpoints[0]
        output, path = config.output, first.path.resolve()
        run = path.parent.parent if path.parent.name == "training_state" else path
        own = folder_name(f"{output.name or run.name}_{config.data.dataset_name}")
        folder = gather(Path(output.directory or Path("eval_runs") / own))[0]
        with one_writer(folder, inputs_of(config)):
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
            results, table = [], folder
            for checkpoint in checkpoints:
                results.append(_Evaluator(config, engine, folder, checkpoint).result())
                table = all_ranks().from_first(
                    lambda: write_bytes(folder / TABLE, csv(table_of(results)))
                )
            return Evaluated(folder, table, results)


def require_evaluation_inputs(
    where: PolicyConfig, data: EvaluationData, sampling: EvaluationSampling
) -> list[Checkpoint]:
    """The checkpoints of a configuration whose files are there and belong together."""
    data.require_files()
    checkpoints = find_checkpoints(where)
    require_one_model(checkpoints, where.base_model)
    if sampling.engine == "vllm":
        require_vllm([c.path for c in checkpoints], world_size())
    return checkpoints


@dataclass(frozen=True)
class _Evaluator:
    """What is done with a checkpoint.

    Attributes:
        config: What is estimated, on which prompts, and how.
        engine: vLLM; None to generate by transformers.
        folder: Of the evaluation.
        checkpoint: The checkpoint.
    """

    config: EvaluateConfig
    engine: VllmEngine | None
    folder: Path
    checkpoint: Checkpoint

    def result(self) -> EvaluationResult:
        """Evaluate a checkpoint, if that is not done; what does not fit is refused before files."""
        config, checkpoint = self.config, self.checkpoint
        data, profile, sampling = config.data, config.evaluation, config.sampling
        made_from = evaluation_origin(config, checkpoint.path)
        for other in other_base(checkpoint.path, made_from):
            if config.checkpoint.base_model is None:
                raise ValueError(
                    f"{checkpoint.path} cannot be evaluated as trained: {other.words}. Restore the "
                    "base model, or set checkpoint.base_model to evaluate on this one all the same."
                )
            log.warning("%s: %s.", checkpoint.path, other.words)
        step = StepFolder(self.folder / checkpoint.name, made_from)
        step.require_same_origin()
        if (done := step.result()) is not None:
            log.info("%s is done already", checkpoint.name)
            step.remove_chunks()
            return done
        log.info("evaluating %s", checkpoint.path)
        policy = checkpoint.load(config.checkpoint, sampling)
        task = data.task(data.split)
        require_format(task, profile.metrics or (), data.dataset_name)
        prompts = choose_prompts(task.prompts, profile.n_prompts, profile.seed, policy=policy)
        require_room(policy, prompts, sampling.max_new_tokens)
        barrier()

        def begin() -> None:
            content = resolved_content(config, self.folder, seeds={"evaluation": profile.seed})
            write_bytes(self.folder / CONFIG, content)
            step.begin()

        all_ranks().from_first(begin)
        starts = range(0, len(prompts), profile.chunk_prompts)
        chunks = [prompts[start : start + profile.chunk_prompts] for start in starts]
        self._make(chunks, step, policy, task)
        barrier()
        all_ranks().from_first(lambda: step.finish(*self._consolidated(step, len(chunks))))
        done = step.result()
        assert done is not None
        return done

    def _make(
        self, chunks: list[list[Prompt]], step: StepFolder, policy: Policy, task: Task
    ) -> None:
        """Make the chunks that are not there yet, or under torchrun a share of them."""
        config, done = self.config, 0
        profile, sampling = config.evaluation, config.sampling
        every = product(profile.samples, range(len(chunks)))
        missing = gather([chunk for chunk in every if not step.has(*chunk)])[0]
        # the processes of a sharded model make every chunk together
        mine = missing if policy.sharded else missing[rank() :: world_size()]
        measuring, drawing = config.precision.measuring, config.precision.sampling
        with progress().bar(self.checkpoint.name) as advance, at_precision(policy, measuring):
            for decoding, samples in profile.samples.items():
                generator = random_numbers(profile.seed)
                for number, prompts in enumerate(chunks):
                    start = number * profile.chunk_prompts
                    if (decoding, number) not in mine:
                        n = len(prompts) * samples
                        skip_random_numbers(generator, n, sampling.max_new_tokens)
                        continue
                    if self.engine is not None:
                        rollouts = self.engine.respond(
                            policy, self.checkpoint.path, prompts, start, samples, decoding
                        )
                    else:
                        other = drawing != measuring
                        with at_precision(policy, drawing) if other else nullcontext():
                            rollouts = draw_responses(
                                policy,
                                prompts,
                                samples,
                                generator,
                                decoding=decoding,
                                max_new_tokens=sampling.max_new_tokens,
                                batch_size=sampling.batch_size,
                            )
                    records = score_records(
                        policy,
                        rollouts,
                        task,
                        profile.chosen,
                        decoding,
                        right_above=profile.right_above,
                    )
                    records["prompt"] += start
                    if rank() == 0 or not policy.sharded:
                        step.save(decoding, number, records)
                    done += 1
                    advance(done, len(mine))

    def _consolidated(self, step: StepFolder, chunks: int) -> tuple[pd.DataFrame, EvaluationResult]:
        """Read all chunks back."""
        config, checkpoint = self.config, self.checkpoint
        rows, tables = list[EvaluatedRow](), []
        for decoding in config.evaluation.samples:
            records = step.load(decoding, chunks)
            rows.append(self._row(decoding, records))
            for group, some in records.groupby("group") if "group" in records else ():
                rows.append(self._row(decoding, some, str(group)))
            if not config.evaluation.save_tokens:
                records = records.drop(columns=list(TOKENS), errors="ignore")
            records.insert(0, "decoding", decoding)
            tables.append(records)
        result = EvaluationResult(
            schema=SCHEMA,
            checkpoint=checkpoint.name,
            path=str(checkpoint.path),
            step=checkpoint.step,
            dataset=config.data.dataset_name,
            split=config.data.split,
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            rows=tuple(rows),
            made_from=step.made_from,
            verified=verifying(),
        )
        return pd.concat(tables, ignore_index=True), result

    def _row(
        self, decoding: Decoding, records: pd.DataFrame, group: str | None = None
    ) -> EvaluatedRow:
        profile, sampled = self.config.evaluation, decoding == "sampled"
        counts, edges = np.histogram(records["reward"], bins=20)
        return EvaluatedRow(
            decoding=decoding,
            n_prompts=records["prompt"].nunique(),
            samples_per_prompt=profile.samples[decoding],
            metrics=dict(estimate_metrics(records, profile.chosen, profile.tries, sampled=sampled)),
            rewards=RewardCounts(tuple(edges.tolist()), tuple(counts.tolist())),
            group=group,
        )
