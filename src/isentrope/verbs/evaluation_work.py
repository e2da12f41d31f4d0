"""One checkpoint under evaluation: its chunks are made here, and its numbers read from them.

What a chunk holds depends on the settings and its number alone: the stream of random numbers runs
over all prompts in order, and passes over the chunks that another process or an earlier run made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import product

import numpy as np
import pandas as pd
import torch

from isentrope.config.evaluate import EvaluateConfig
from isentrope.evaluation.evaluate import require_format, score_records
from isentrope.evaluation.metrics import estimate_metrics
from isentrope.evaluation.records import TOKENS
from isentrope.evaluation.responses import (
    Decoding,
    choose_prompts,
    draw_responses,
    random_numbers,
    skip_random_numbers,
)
from isentrope.evaluation.vllm_engine import VllmEngine
from isentrope.nouns.rollouts import Rollouts
from isentrope.runs.checkpoints import Checkpoint
from isentrope.runs.evaluation_folder import StepFolder
from isentrope.runs.evaluation_result import EvaluatedRow, EvaluationResult, RewardCounts
from isentrope.sampling.prompts import Prompt, require_room
from isentrope.system.manifest import verifying
from isentrope.system.processes import gather, rank, world_size
from isentrope.system.progress import Progress
from isentrope.verbs.precision_stages import at_precision

SCHEMA = "isentrope/evaluate/1"


class Work:
    """One checkpoint loaded, and its prompts."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        step: StepFolder,
        config: EvaluateConfig,
        engine: VllmEngine | None,
    ) -> None:
        """Load a checkpoint and choose its prompts; what does not fit is refused here.

        Args:
            checkpoint: The checkpoint.
            step: Where its chunks go.
            config: What is estimated, on which prompts, and how.
            engine: vLLM; None to generate by transformers.
        """
        self._checkpoint, self._step, self._config, self._engine = checkpoint, step, config, engine
        self._profile = profile = config.evaluation
        self._policy = checkpoint.load(config.checkpoint, config.sampling)
        data = config.data
        self._task = data.load_task(data.dataset_name, data.split, data.dataset_path)
        require_format(self._task, profile.metrics or (), data.dataset_name)
        self._prompts = choose_prompts(
            self._task.prompts, profile.n_prompts, profile.seed, policy=self._policy
        )
        require_room(self._policy, self._prompts, config.sampling.max_new_tokens)
        self._starts = range(0, len(self._prompts), profile.chunk_prompts)
        self._samples: dict[Decoding, int] = {"sampled": profile.samples_per_prompt}
        if profile.greedy:
            self._samples["greedy"] = 1

    def make_chunks(self, progress: Progress) -> None:
        """Make the chunks that are not there yet, or under torchrun a share of them."""
        policy, profile = self._policy, self._profile
        every = product(self._samples, range(len(self._starts)))
        missing = gather([chunk for chunk in every if not self._step.has(*chunk)])[0]
        # the processes of a sharded model make every chunk together
        mine = missing if policy.sharded else missing[rank() :: world_size()]
        with (
            progress.bar(self._checkpoint.name) as advance,
            at_precision(policy, self._config.precision.measuring),
        ):
            for done, (decoding, number, rollouts) in enumerate(self._answers(mine), start=1):
                above = profile.right_above
                records = score_records(
                    *(policy, rollouts, self._task, profile.chosen, decoding), right_above=above
                )
                records["prompt"] += self._starts[number]
                if rank() == 0 or not policy.sharded:
                    self._step.save(decoding, number, records)
                advance(done, len(mine))

    def _answers(
        self, chunks: Sequence[tuple[Decoding, int]]
    ) -> Iterator[tuple[Decoding, int, Rollouts]]:
        """The responses of these chunks."""
        profile, longest = self._profile, self._config.sampling.max_new_tokens
        for decoding, samples in self._samples.items():
            generator = random_numbers(profile.seed)
            for number, start in enumerate(self._starts):
                chosen = self._prompts[start : start + profile.chunk_prompts]
                if (decoding, number) in chunks:
                    yield decoding, number, self._answer(chosen, start, decoding, generator)
                else:
                    skip_random_numbers(generator, len(chosen) * samples, longest)

    def _answer(
        self, prompts: Sequence[Prompt], start: int, decoding: Decoding, generator: torch.Generator
    ) -> Rollouts:
        policy, samples, sampling = self._policy, self._samples[decoding], self._config.sampling
        if self._engine is not None:
            folder = self._checkpoint.path
            return self._engine.respond(policy, folder, prompts, start, samples, decoding)
        precision = self._config.precision
        other = precision.sampling != precision.measuring
        with at_precision(policy, precision.sampling) if other else nullcontext():
            return draw_responses(
                *(policy, prompts, samples, generator),
                decoding=decoding,
                max_new_tokens=sampling.max_new_tokens,
                batch_size=sampling.batch_size,
            )

    def consolidated(self) -> tuple[pd.DataFrame, EvaluationResult]:
        """Read all chunks back."""
        rows, tables = [], []
        for decoding in self._samples:
            records = self._step.load(decoding, len(self._starts))
            rows.append(self._row(decoding, records))
            if not self._profile.save_tokens:
                records = records.drop(columns=list(TOKENS), errors="ignore")
            records.insert(0, "decoding", decoding)
            tables.append(records)
        data, sampling = self._config.data, self._config.sampling
        result = EvaluationResult(
            schema=SCHEMA,
            checkpoint=self._checkpoint.name,
            path=str(self._checkpoint.path),
            step=self._checkpoint.step,
            dataset=data.dataset_name,
            split=data.split,
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_new_tokens,
            rows=tuple(rows),
            verified=verifying(),
        )
        return pd.concat(tables, ignore_index=True), result

    def _row(self, decoding: Decoding, records: pd.DataFrame) -> EvaluatedRow:
        profile = self._profile
        metrics = estimate_metrics(
            records, profile.chosen, profile.tries, sampled=decoding == "sampled"
        )
        counts, edges = np.histogram(records["reward"], bins=20)
        return EvaluatedRow(
            decoding=decoding,
            n_prompts=len(self._prompts),
            samples_per_prompt=self._samples[decoding],
            metrics=dict(metrics),
            rewards=RewardCounts(tuple(edges.tolist()), tuple(counts.tolist())),
        )
