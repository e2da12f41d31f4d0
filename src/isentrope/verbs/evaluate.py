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
from isentrope.runs.checkpoints import Checkpoint, find_checkpoints
from isentrope.runs.evaluation_folder import (
    TABLE,
    EvaluatedRow,
    EvaluationResult,
    RewardCounts,
    StepFolder,
    table_of,
)
from isentrope.runs.folder import folder_name, heed, one_writer, resolved_content
from isentrope.runs.identity import CONFIG, require_same_evaluation
from isentrope.runs.origin import evaluation_origin
from isentrope.runs.study import other_base, require_one_model
from isentrope.sampling.prompts import Prompt, require_room
from isentrope.sampling.tasks import Task
from isentrope.system.file_contents import csv
from isentrope.system.files import write_bytes
from isentrope.system.manifest import verification, verifying
from isentrope.system.processes import barrier, gather, join_processes, rank, world_size
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
        of = _Evaluator(config, engine)
        content = resolved_content(config, folder, seeds={"evaluation": profile.seed})
        results, table = [], folder
        for checkpoint in checkpoints:
            made_from = evaluation_origin(config, checkpoint.path)
            for other in other_base(checkpoint.path, made_from):
                if config.checkpoint.base_model is None:
                    raise ValueError(
                        f"{checkpoint.path} cannot be evaluated as trained: {other.words}. Restore "
                        "the base model, or set checkpoint.base_model to evaluate on this one all "
                        "the same."
                    )
                log.warning("%s: %s.", checkpoint.path, other.words)
            step = StepFolder(folder / checkpoint.name, made_from)
            results.append(of.evaluate(checkpoint, step, content))
            if rank() == 0:
                table = write_bytes(folder / TABLE, csv(table_of(results)))
        barrier()
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
    """What is done with every checkpoint.

    Attributes:
        config: What is estimated, on which prompts, and how.
        engine: vLLM; None to generate by transformers.
    """

    config: EvaluateConfig
    engine: VllmEngine | None

    @property
    def samples(self) -> dict[Decoding, int]:
        """Responses to each prompt, by decoding."""
        profile = self.config.evaluation
        greedy: dict[Decoding, int] = {"greedy": 1} if profile.greedy else {}
        return {"sampled": profile.samples_per_prompt, **greedy}

    def evaluate(
        self, checkpoint: Checkpoint, step: StepFolder, content: bytes
    ) -> EvaluationResult:
        """Evaluate a checkpoint, if that is not done; what does not fit is refused before files."""
        step.require_same_origin()
        if (done := step.result()) is not None:
            log.info("%s is done already", checkpoint.name)
            step.remove_chunks()
            return done
        log.info("evaluating %s", checkpoint.path)
        data, profile, sampling = self.config.data, self.config.evaluation, self.config.sampling
        policy = checkpoint.load(self.config.checkpoint, sampling)
        task = data.task(data.split)
        require_format(task, profile.metrics or (), data.dataset_name)
        prompts = choose_prompts(task.prompts, profile.n_prompts, profile.seed, policy=policy)
        require_room(policy, prompts, sampling.max_new_tokens)
        barrier()
        if rank() == 0:
            write_bytes(step.path.parent / CONFIG, content)
            step.begin()
        barrier()
        chunks = [
            prompts[start : start + profile.chunk_prompts]
            for start in range(0, len(prompts), profile.chunk_prompts)
        ]
        self._make(chunks, checkpoint, step, policy, task)
        barrier()
        if rank() == 0:
            step.finish(*self._consolidated(checkpoint, step, len(chunks)))
        barrier()
        done = step.result()
        assert done is not None
        return done

    def _make(
        self,
        chunks: list[list[Prompt]],
        checkpoint: Checkpoint,
        step: StepFolder,
        policy: Policy,
        task: Task,
    ) -> None:
        """Make the chunks that are not there yet, or under torchrun a share of them."""
        every = product(self.samples, range(len(chunks)))
        missing = gather([chunk for chunk in every if not step.has(*chunk)])[0]
        # the processes of a sharded model make every chunk together
        mine = missing if policy.sharded else missing[rank() :: world_size()]
        profile, sampling, done = self.config.evaluation, self.config.sampling, 0
        measuring, drawing = self.config.precision.measuring, self.config.precision.sampling
        with progress().bar(checkpoint.name) as advance, at_precision(policy, measuring):
            for decoding, samples in self.samples.items():
                generator = random_numbers(profile.seed)
                for number, prompts in enumerate(chunks):
                    start = number * profile.chunk_prompts
                    if (decoding, number) not in mine:
                        n = len(prompts) * samples
                        skip_random_numbers(generator, n, sampling.max_new_tokens)
                        continue
                    if self.engine is not None:
                        rollouts = self.engine.respond(
                            *(policy, checkpoint.path, prompts, start, samples, decoding)
                        )
                    else:
                        other = drawing != measuring
                        with at_precision(policy, drawing) if other else nullcontext():
                            rollouts = draw_responses(
                                *(policy, prompts, samples, generator),
                                decoding=decoding,
                                max_new_tokens=sampling.max_new_tokens,
                                batch_size=sampling.batch_size,
                            )
                    records = score_records(
                        *(policy, rollouts, task, profile.chosen, decoding),
                        right_above=profile.right_above,
                    )
                    records["prompt"] += start
                    if rank() == 0 or not policy.sharded:
                        step.save(decoding, number, records)
                    done += 1
                    advance(done, len(mine))

    def _consolidated(
        self, checkpoint: Checkpoint, step: StepFolder, chunks: int
    ) -> tuple[pd.DataFrame, EvaluationResult]:
        """Read all chunks back."""
        rows, tables = list[EvaluatedRow](), []
        for decoding in self.samples:
            records = step.load(decoding, chunks)
            rows.append(self._row(decoding, records))
            for group, some in records.groupby("group") if "group" in records else ():
                rows.append(self._row(decoding, some, str(group)))
            if not self.config.evaluation.save_tokens:
                records = records.drop(columns=list(TOKENS), errors="ignore")
            records.insert(0, "decoding", decoding)
            tables.append(records)
        result = EvaluationResult(
            schema=SCHEMA,
            checkpoint=checkpoint.name,
            path=str(checkpoint.path),
            step=checkpoint.step,
            dataset=self.config.data.dataset_name,
            split=self.config.data.split,
            temperature=self.config.sampling.temperature,
            max_new_tokens=self.config.sampling.max_new_tokens,
            rows=tuple(rows),
            made_from=step.made_from,
            verified=verifying(),
        )
        return pd.concat(tables, ignore_index=True), result

    def _row(
        self, decoding: Decoding, records: pd.DataFrame, group: str | None = None
    ) -> EvaluatedRow:
        profile = self.config.evaluation
        metrics = estimate_metrics(
            records, profile.chosen, profile.tries, sampled=decoding == "sampled"
        )
        counts, edges = np.histogram(records["reward"], bins=20)
        return EvaluatedRow(
            decoding=decoding,
            n_prompts=records["prompt"].nunique(),
            samples_per_prompt=self.samples[decoding],
            metrics=dict(metrics),
            rewards=RewardCounts(tuple(edges.tolist()), tuple(counts.tolist())),
            group=group,
        )
