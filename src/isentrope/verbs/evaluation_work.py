"""One checkpoint under evaluation: its chunks are made here, and its numbers read from them.

What a chunk holds depends on the settings and its number alone: the stream of random numbers runs
over all prompts in order, and passes over the chunks that another process or an earlier run made.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch

from isentrope.config.evaluate import EvaluationData, EvaluationProfile, EvaluationSampling
from isentrope.config.measure import PolicyConfig
from isentrope.config.stages import ScoringPrecision
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
from isentrope.evaluation.vllm_engine import VllmEngine
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.runs.checkpoints import Checkpoint
from isentrope.runs.evaluation_folder import (
    EvaluatedRow,
    EvaluationResult,
    RewardCounts,
    StepFolder,
)
from isentrope.sampling.prompts import Prompt, require_room
from isentrope.sampling.tasks import Task
from isentrope.system.manifest import verifying
from isentrope.system.processes import gather, rank, world_size
from isentrope.system.progress import progress
from isentrope.verbs.precision_stages import at_precision

SCHEMA = "isentrope/evaluate/1"


@dataclass(frozen=True)
class Sections:
    """What is estimated of every checkpoint, on which prompts, and how.

    Attributes:
        where: How a checkpoint is loaded.
        data: The task.
        profile: What is estimated, from how many responses.
        precision: Of scorer and sampler.
        sampling: How responses are drawn.
        engine: vLLM; None to generate by transformers.
    """

    where: PolicyConfig
    data: EvaluationData
    profile: EvaluationProfile
    precision: ScoringPrecision
    sampling: EvaluationSampling
    engine: VllmEngine | None


class Work:
    """One checkpoint loaded, and its prompts.

    Attributes:
        policy: In float32, to be set to a precision for the work.
        task: Prompts and rewards.
        prompts: Those that are evaluated on.
        starts: Number of the first prompt of each chunk.
        samples: Responses to each prompt, by decoding.
    """

    def __init__(self, checkpoint: Checkpoint, step: StepFolder, of: Sections) -> None:
        """Load a checkpoint and choose its prompts; what does not fit is refused here.

        Args:
            checkpoint: The checkpoint.
            step: Where its chunks go.
            of: What is estimated, on which prompts, and how.
        """
        self._checkpoint, self._step, self._of = checkpoint, step, of
        data, profile = of.data, of.profile
        self.policy: Policy = checkpoint.load(of.where, of.sampling)
        self.task: Task = data.task(data.split)
        require_format(self.task, profile.metrics or (), data.dataset_name)
        self.prompts: list[Prompt] = choose_prompts(
            self.task.prompts, profile.n_prompts, profile.seed, policy=self.policy
        )
        require_room(self.policy, self.prompts, of.sampling.max_new_tokens)
        self.starts = list(range(0, len(self.prompts), profile.chunk_prompts))
        self.samples: dict[Decoding, int] = {"sampled": profile.samples_per_prompt}
        if profile.greedy:
            self.samples["greedy"] = 1

    def make_chunks(self) -> None:
        """Make the chunks that are not there yet, or under torchrun a share of them."""
        every = product(self.samples, range(len(self.starts)))
        missing = gather([chunk for chunk in every if not self._step.has(*chunk)])[0]
        # the processes of a sharded model make every chunk together
        mine = missing if self.policy.sharded else missing[rank() :: world_size()]
        measuring = self._of.precision.measuring
        with (
            progress().bar(self._checkpoint.name) as advance,
            at_precision(self.policy, measuring),
        ):
            for done, (decoding, number, rollouts) in enumerate(self._answers(mine), start=1):
                records = score_records(
                    self.policy,
                    rollouts,
                    self.task,
                    self._of.profile.chosen,
                    decoding,
                    right_above=self._of.profile.right_above,
                )
                records["prompt"] += self.starts[number]
                if rank() == 0 or not self.policy.sharded:
                    self._step.save(decoding, number, records)
                advance(done, len(mine))

    def _answers(
        self, chunks: Sequence[tuple[Decoding, int]]
    ) -> Iterator[tuple[Decoding, int, Rollouts]]:
        """The responses of these chunks."""
        profile, longest = self._of.profile, self._of.sampling.max_new_tokens
        for decoding in self.samples:
            generator = random_numbers(profile.seed)
            for number, start in enumerate(self.starts):
                chosen = self.prompts[start : start + profile.chunk_prompts]
                if (decoding, number) in chunks:
                    yield decoding, number, self._answer(chosen, start, decoding, generator)
                else:
                    skip_random_numbers(generator, len(chosen) * self.samples[decoding], longest)

    def _answer(
        self, prompts: Sequence[Prompt], start: int, decoding: Decoding, generator: torch.Generator
    ) -> Rollouts:
        sampling, precision = self._of.sampling, self._of.precision
        samples = self.samples[decoding]
        if self._of.engine is not None:
            folder = self._checkpoint.path
            return self._of.engine.respond(self.policy, folder, prompts, start, samples, decoding)
        other = precision.sampling != precision.measuring
        with at_precision(self.policy, precision.sampling) if other else nullcontext():
            return draw_responses(
                self.policy,
                prompts,
                samples,
                generator,
                decoding=decoding,
                max_new_tokens=sampling.max_new_tokens,
                batch_size=sampling.batch_size,
            )

    def consolidated(self) -> tuple[pd.DataFrame, EvaluationResult]:
        """Read all chunks back."""
        rows, tables = list[EvaluatedRow](), []
        for decoding in self.samples:
            records = self._step.load(decoding, len(self.starts))
            rows.append(self._row(decoding, records))
            for group, some in records.groupby("group") if "group" in records else ():
                rows.append(self._row(decoding, some, str(group)))
            if not self._of.profile.save_tokens:
                records = records.drop(columns=list(TOKENS), errors="ignore")
            records.insert(0, "decoding", decoding)
            tables.append(records)
        result = EvaluationResult(
            schema=SCHEMA,
            checkpoint=self._checkpoint.name,
            path=str(self._checkpoint.path),
            step=self._checkpoint.step,
            dataset=self._of.data.dataset_name,
            split=self._of.data.split,
            temperature=self._of.sampling.temperature,
            max_new_tokens=self._of.sampling.max_new_tokens,
            rows=tuple(rows),
            verified=verifying(),
        )
        return pd.concat(tables, ignore_index=True), result

    def _row(
        self, decoding: Decoding, records: pd.DataFrame, group: str | None = None
    ) -> EvaluatedRow:
        profile = self._of.profile
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
