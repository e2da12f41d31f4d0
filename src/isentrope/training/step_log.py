"""Output of a finished training step: its metrics, its table of rollouts, and its replay."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.recording.next_update import write_next_update
from isentrope.recording.token_record import TokenRecord, off_policy_warning, policy_ratio
from isentrope.sampling.batches import UpdateBatchReport
from isentrope.system.checkpoint_folder import step_name
from isentrope.system.files import write_file
from isentrope.system.processes import rank
from isentrope.training.run_files import RunFiles
from isentrope.training.update_batches import UpdateBatch


class StepLog:
    """Writes the output of each finished step.

    Attributes:
        files: The files of the run.
    """

    def __init__(
        self,
        files: RunFiles,
        *,
        rollouts_every: int = 1,
        observe: Callable[[dict[str, float]], None] = lambda metrics: None,
    ) -> None:
        """Start the timer of the first step.

        Args:
            files: The files of the run.
            rollouts_every: Number of steps between tables of rollouts; 0 for no tables.
            observe: Called on the first process with the metrics and times of each step.
        """
        self.files = files
        self._rollouts_every, self._observe = rollouts_every, observe
        self._last_time = time.perf_counter()
        self._warned = False

    def finish(
        self,
        summary: Mapping[str, Any],
        batch: UpdateBatch,
        record: TokenRecord,
        eos_token_ids: Collection[int],
        readings: Mapping[str, float],
        *,
        seconds: Mapping[str, float] | None = None,
        control: Vector | None = None,
    ) -> dict[str, float]:
        """Write a step; only the first process does.

        Args:
            summary: step, loss, learning_rate, gradient_norm, tokens (so far), max_grad_norm.
            batch: The update batch.
            record: Log-probabilities, entropies and weights of its tokens in training.
            eos_token_ids: Tokens that end a response.
            readings: Numbers of the probe, the noise scale and the control.
            seconds: Times of parts of the step, by name.
            control: The vector that a step control added to v, or None.

        Returns:
            The step's metrics and times, for trackers.
        """
        line = {k: v for k, v in summary.items() if k != "max_grad_norm"}
        line |= step_metrics(batch, record, eos_token_ids) | dict(readings)
        now = time.perf_counter()
        elapsed, self._last_time = now - self._last_time, now
        tokens = float(batch.rollouts.lengths.sum())
        timing = {"seconds": elapsed, "tokens_per_second": tokens / elapsed, **(seconds or {})}
        if (sentence := off_policy_warning(line)) and not self._warned:
            self._warned = True
            logging.getLogger("isentrope").warning(sentence)
        if rank() == 0:
            self._write(summary, batch, record, control)
            self.files.log(line, {"step": line["step"]} | timing)
            self._observe(line | timing)
        return {k: v for k, v in (line | timing).items() if k != "step"}

    def _write(
        self,
        summary: Mapping[str, Any],
        batch: UpdateBatch,
        record: TokenRecord,
        control: Vector | None,
    ) -> None:
        step = int(summary["step"])
        if self._rollouts_every and step % self._rollouts_every == 0:
            write_rollouts(self.files.rollouts / f"{step_name(step)}.parquet", step, batch, record)
        before = self.files.checkpoint(step - 1)
        if before.is_dir():
            replayable = batch.rollouts.with_columns(
                token_weights=record.weights, entropy_weights=record.entropy_weights
            )
            update = {k: v for k, v in summary.items() if k != "tokens"}
            write_next_update(before, replayable, update, control)


def step_metrics(
    batch: UpdateBatch, record: TokenRecord, eos_token_ids: Collection[int]
) -> dict[str, float]:
    """Sample means of a step's batch, for a log; no error bars.

    Args:
        batch: The update batch.
        record: Log-probabilities, entropies and weights of its tokens in training.
        eos_token_ids: A response that ends with none of them was truncated.

    Returns:
        `reward` of all responses drawn and `reward_kept` of those in the batch, `entropy` (nats
        per token of the batch, which is filtered: the probe's is not), `surprisal` (nats per
        sequence), `length`, `truncated`, the counts of the report, and the policy ratio.
    """
    rollouts = batch.rollouts
    means = metrics(rollouts, batch.report)
    truncated = [int(r[-1]) not in eos_token_ids for r in rollouts.response_ids]
    return {
        "reward": means.pop("mean_reward"),
        "reward_kept": float(cast(Tensor, rollouts.rewards).mean()),
        "entropy": float(torch.cat(record.entropies).mean()),
        "truncated": sum(truncated) / len(truncated),
        **means,
        **policy_ratio(rollouts, record),
    }


def metrics(batch: Rollouts, report: UpdateBatchReport) -> dict[str, float]:
    """Describe an update batch.

    Args:
        batch: The kept responses, with rewards and sampler log-probabilities.
        report: Statistics of all responses drawn.

    Returns:
        The report's counts and means; `pass_rate`, the share of correct responses among all drawn,
        rejected groups included; and of the kept responses `surprisal` (nats per sequence) and
        `length` (tokens).
    """
    group_size = len(batch) / batch.n_prompts
    correct = int((cast(Tensor, batch.rewards) == 1).sum()) + group_size * report.all_right
    surprisal = -sum(float(s.sum()) for s in cast(list[Tensor], batch.sampler_logprobs))
    return {name: value for name, value in vars(report).items() if value is not None} | {
        "pass_rate": correct / (group_size * report.drawn),
        "surprisal": surprisal / len(batch),
        "length": float(batch.lengths.double().mean()),
    }


def write_rollouts(path: Path, step: int, batch: UpdateBatch, record: TokenRecord) -> Path:
    """Write the rollouts of a step as parquet, one row per response, completely or not at all."""
    import pandas as pd

    U = batch.rollouts
    columns: dict[str, Any] = {
        "step": [step] * len(U),
        "prompt_key": U.prompt_keys,
        "prompt_index": U.prompt_index.tolist(),
        "difficulty": batch.difficulty,
        "response": U.response_texts,
        "reference": U.references,
        "reward": cast(Tensor, U.rewards).tolist(),
        "advantage": cast(Tensor, U.advantages).tolist(),
        "length": U.lengths.tolist(),
    }
    of_tokens = {
        "prompt_ids": U.prompt_ids,
        "response_ids": U.response_ids,
        "sampler_logprobs": U.sampler_logprobs,
        "logprobs": record.logprobs,
        "entropies": record.entropies,
        "token_weights": record.weights,
        "entropy_weights": record.entropy_weights,
    }
    for name, rows in of_tokens.items():
        if rows is not None:
            columns[name] = [row.tolist() for row in rows]
    return write_file(path, pd.DataFrame(columns).to_parquet)
