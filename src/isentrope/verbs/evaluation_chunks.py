"""A checkpoint evaluated in chunks that survive a kill.

What a chunk holds depends on the settings and its number alone: the stream of random numbers runs
over all prompts in order, and passes over the chunks that another process or an earlier run made.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.config.evaluate import EvaluateConfig
from isentrope.evaluation.evaluate import score_records
from isentrope.evaluation.metrics import estimate_metrics
from isentrope.evaluation.responses import (
    TOKENS,
    draw_responses,
    random_numbers,
    skip_random_numbers,
)
from isentrope.evaluation.vllm_engine import VllmEngine
from isentrope.nouns.choices import Decoding
from isentrope.policy.language_model import Policy
from isentrope.run.evaluation_folder import (
    EvaluatedRow,
    EvaluationResult,
    RewardCounts,
    StepFolder,
)
from isentrope.sampling.prompt import Prompt
from isentrope.sampling.tasks.task import Task
from isentrope.system.manifest import verifying
from isentrope.system.processes import gather, rank, world_size
from isentrope.system.progress import progress
from isentrope.verbs.batches import at_precision

SCHEMA = "isentrope/evaluate/1"


@dataclass(frozen=True)
class ChunkedEvaluation:
    """The evaluation of one checkpoint, made chunk by chunk.

    Attributes:
        config: What is estimated, on which prompts, and how.
        engine: vLLM; None to generate by transformers.
        checkpoint: The checkpoint.
        step: The folder of its results.
    """

    config: EvaluateConfig
    engine: VllmEngine | None
    checkpoint: StoredCheckpoint
    step: StepFolder

    def make(self, chunks: list[list[Prompt]], policy: Policy, task: Task) -> None:
        """Make the chunks that are not there yet, or under torchrun a share of them."""
        config = self.config
        profile = config.evaluation
        sampling = config.sampling
        finished = 0
        numbered = product(profile.samples, range(len(chunks)))
        missing = gather([chunk for chunk in numbered if not self.step.has(*chunk)])[0]
        # the processes of a sharded model make every chunk together
        share = missing if policy.sharded else missing[rank() :: world_size()]
        measuring = config.precision.measuring
        drawing = config.precision.sampling
        with progress().bar(self.checkpoint.name) as advance, at_precision(policy, measuring):
            for decoding, samples in profile.samples.items():
                generator = random_numbers(profile.seed)
                for number, prompts in enumerate(chunks):
                    start = number * profile.chunk_prompts
                    if (decoding, number) not in share:
                        n = len(prompts) * samples
                        skip_random_numbers(generator, n, sampling.max_new_tokens)
                        continue
                    if self.engine is not None:
                        rollouts = self.engine.respond(
                            policy, self.checkpoint.path, prompts, start, samples, decoding
                        )
                    else:
                        differs = drawing != measuring
                        with at_precision(policy, drawing) if differs else nullcontext():
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
                        self.step.save(decoding, number, records)
                    finished += 1
                    advance(finished, len(share))

    def finish(self, chunks: int) -> EvaluationResult:
        """Read all chunks back, compute the numbers, and write both."""
        config = self.config
        checkpoint = self.checkpoint
        rows: list[EvaluatedRow] = []
        tables: list[pd.DataFrame] = []
        for decoding in config.evaluation.samples:
            records = self.step.load(decoding, chunks)
            rows.append(self._summarise(decoding, records))
            for group, members in records.groupby("group") if "group" in records else ():
                rows.append(self._summarise(decoding, members, str(group)))
            if not config.evaluation.save_tokens:
                records = records.drop(columns=list(TOKENS), errors="ignore")
            records.insert(0, "decoding", decoding)
            tables.append(records)
        result = EvaluationResult(
            schema=SCHEMA,
            checkpoint=checkpoint.name,
            path=str(checkpoint.path),
            step=checkpoint.step_number,
            dataset=config.data.dataset_name,
            split=config.data.split,
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            rows=tuple(rows),
            made_from=self.step.made_from,
            verified=verifying(),
        )
        return self.step.finish(pd.concat(tables, ignore_index=True), result)

    def _summarise(
        self, decoding: Decoding, records: pd.DataFrame, group: str | None = None
    ) -> EvaluatedRow:
        profile = self.config.evaluation
        sampled = decoding == "sampled"
        counts, edges = np.histogram(records["reward"], bins=20)
        return EvaluatedRow(
            decoding=decoding,
            n_prompts=records["prompt"].nunique(),
            samples_per_prompt=profile.samples[decoding],
            metrics=dict(estimate_metrics(records, profile.chosen, profile.tries, sampled=sampled)),
            rewards=RewardCounts(tuple(edges.tolist()), tuple(counts.tolist())),
            group=group,
        )
