"""What `isentrope evaluate` does: checkpoints on a task, in chunks that survive a kill.

The prompts of a checkpoint are cut into chunks. A chunk is sampled, scored, rewarded and written
whole; processes of torchrun take chunks by turns. What a chunk holds depends on the settings and
its number alone, so any order, any number of processes and any restart give the same files. When
all chunks of a checkpoint are there the first process reads them back and computes the numbers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isentrope.evaluation.evaluate import require_format, score_records
from isentrope.evaluation.metrics import estimate_metrics, metric_names
from isentrope.evaluation.records import TOKENS
from isentrope.evaluation.responses import (
    Decoding,
    choose_prompts,
    draw_responses,
    pass_over,
    random_numbers,
)
from isentrope.evaluation.vllm_engine import VllmEngine, require_vllm
from isentrope.experiments.checkpoints import Checkpoint, find_checkpoints
from isentrope.experiments.config_evaluation import EvaluateConfig
from isentrope.experiments.config_io import dump_config
from isentrope.experiments.evaluated_models import digest, require_one_model
from isentrope.experiments.evaluation_folder import (
    CONFIG,
    StepFolder,
    require_same_settings,
    write_table,
)
from isentrope.experiments.precision_stages import at_precision
from isentrope.experiments.progress import Progress
from isentrope.experiments.run_folder import differences, versions, write_bytes
from isentrope.experiments.train import join_processes
from isentrope.policy.language_model import Policy
from isentrope.rollouts import Rollouts
from isentrope.sampling.prompts import Prompt, require_room
from isentrope.sampling.tasks import Task, load_task
from isentrope.training.processes import barrier, gather, rank, world_size

log = logging.getLogger("isentrope")

SCHEMA = "isentrope/evaluate/1"


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation made.

    Attributes:
        folder: Its folder.
        table: The consolidated table.
        results: The content of each metrics.json, in the order of the checkpoints.
    """

    folder: Path
    table: Path
    results: list[dict[str, Any]]


def evaluate_checkpoints(config: EvaluateConfig, *, progress: Progress | None = None) -> Evaluated:
    """Evaluate every checkpoint of a configuration, or go on where that was stopped.

    Args:
        config: What to evaluate, on what.
        progress: Where to say how far it is.

    Returns:
        The folder and the results.
    """
    log.setLevel(config.output.log_level)
    for difference in differences(config.provenance or {}):
        log.warning("This configuration is of an evaluation with %s.", difference)
    join_processes()
    checkpoints = require_evaluation_inputs(config)
    folder = gather(evaluation_directory(config, checkpoints))[0]
    require_same_settings(folder, config)
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
    """The folder that a configuration names; it is not made yet.

    Args:
        config: The configuration.
        checkpoints: Its checkpoints.

    Returns:
        `output.directory`, or eval_runs/<name>_<dataset>.
    """
    if config.output.directory:
        return Path(config.output.directory)
    first = checkpoints[0].path.resolve()
    run = first.parent.parent if first.parent.name == "training_state" else first
    return Path("eval_runs") / f"{config.output.name or run.name}_{config.data.dataset_name}"


def _resolved(config: EvaluateConfig) -> str:
    """The configuration with what it was run with; its output folder left to the rerun."""
    provenance = versions() | {"seeds": {"evaluation": config.evaluation.seed}}
    output = config.output.model_copy(update={"directory": None})
    return dump_config(config.model_copy(update={"provenance": provenance, "output": output}))


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
) -> dict[str, Any]:
    made_from = {"weights": digest(sorted(checkpoint.path.glob("*.safetensors")))}
    if config.data.dataset_path is not None:
        made_from["data"] = digest(_data_files(Path(config.data.dataset_path)))
    step = StepFolder(folder / checkpoint.name, made_from)
    step.require_same_origin()
    if step.results() is None:
        log.info("evaluating %s", checkpoint.path)
        work = _Work(config, checkpoint, step, engine)  # refuses what it can before any file
        barrier()
        if rank() == 0:
            write_bytes(folder / CONFIG, _resolved(config).encode())
            step.begin()
        barrier()
        work.do_chunks(progress)
        barrier()
        if rank() == 0:
            step.finish(*work.consolidated())
        barrier()
    else:
        log.info("%s is done already", checkpoint.name)
        step.remove_chunks()
    done = step.results()
    assert done is not None
    return done


def _data_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.jsonl"))


class _Work:
    """One checkpoint loaded, its prompts, and its chunks."""

    def __init__(
        self,
        config: EvaluateConfig,
        checkpoint: Checkpoint,
        step: StepFolder,
        engine: VllmEngine | None,
    ) -> None:
        self.config, self.checkpoint, self.step, self.engine = config, checkpoint, step, engine
        profile, data = config.evaluation, config.data
        self.policy: Policy = checkpoint.load(_on_own_device(config))
        self.task: Task = load_task(
            data.dataset_name, data.split, data.dataset_path, tokenizer=self.policy.tokenizer
        )
        require_format(self.task, profile.metrics or (), data.dataset_name)
        self.prompts: list[Prompt] = choose_prompts(
            self.task.prompts, profile.n_prompts, profile.seed, policy=self.policy
        )
        require_room(self.policy, self.prompts, config.sampling.max_new_tokens)
        size = profile.chunk_prompts
        self.starts = list(range(0, len(self.prompts), size))
        self.samples: dict[Decoding, int] = {"sampled": profile.samples_per_prompt}
        if profile.greedy:
            self.samples["greedy"] = 1

    def do_chunks(self, progress: Progress) -> None:
        """Make the chunks of this process that are not there yet."""
        chunks = len(self.starts) * len(self.samples)
        precision = self.config.precision.measuring
        with (
            progress.counter(self.checkpoint.name) as advance,
            at_precision(self.policy, precision),
        ):
            for done, (decoding, number, rollouts) in enumerate(self._missing()):
                records = score_records(
                    self.policy,
                    rollouts,
                    self.task,
                    self.config.evaluation.chosen,
                    decoding,
                    right_above=self.config.evaluation.right_above,
                )
                records["prompt"] += self.starts[number]
                self.step.save(decoding, number, records)
                advance(done + 1, -(-chunks // world_size()))

    def _missing(self) -> Iterator[tuple[Decoding, int, Rollouts]]:
        """The responses of each chunk; the stream of random numbers passes over the others."""
        for decoding, samples in self.samples.items():
            generator = random_numbers(self.config.evaluation.seed)
            for number, start in enumerate(self.starts):
                chosen = self.prompts[start : start + self.config.evaluation.chunk_prompts]
                if number % world_size() != rank() or self.step.has(decoding, number):
                    length = self.config.sampling.max_new_tokens
                    pass_over(generator, len(chosen) * samples, length)
                elif self.engine is not None:
                    folder = self.checkpoint.path
                    yield (
                        decoding,
                        number,
                        self.engine.respond(self.policy, folder, chosen, start, samples, decoding),
                    )
                else:
                    yield decoding, number, self._draw(chosen, samples, generator, decoding)

    def _draw(self, prompts, samples, generator, decoding: Decoding) -> Rollouts:
        sampling, precision = self.config.sampling, self.config.precision
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

    def consolidated(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """All records of the checkpoint, and what they say."""
        profile, rows, tables = self.config.evaluation, [], []
        for decoding, samples in self.samples.items():
            records = self.step.load(decoding, len(self.starts))
            sampled = decoding == "sampled"
            found = estimate_metrics(records, profile.chosen, profile.tries, sampled=sampled)
            counts, edges = np.histogram(records["reward"], bins=20)
            rows.append(
                {
                    "decoding": decoding,
                    "n_prompts": len(self.prompts),
                    "samples_per_prompt": samples,
                    "metrics": {name: e and e.to_dict() for name, e in found.items()},
                    "rewards": {"edges": edges.tolist(), "counts": counts.tolist()},
                }
            )
            if not profile.save_tokens:
                records = records.drop(columns=list(TOKENS), errors="ignore")
            records.insert(0, "decoding", decoding)
            tables.append(records)
        return pd.concat(tables, ignore_index=True), self._head() | {"rows": rows}

    def _head(self) -> dict[str, Any]:
        data = self.config.data
        return {
            "schema": SCHEMA,
            "checkpoint": self.checkpoint.name,
            "path": str(self.checkpoint.path),
            "step": self.checkpoint.step,
            "dataset": data.dataset_name,
            "split": data.split,
            "temperature": self.config.sampling.temperature,
            "max_new_tokens": self.config.sampling.max_new_tokens,
        }


def _on_own_device(config: EvaluateConfig) -> EvaluateConfig:
    """Where processes share a machine's GPUs, each has its own."""
    if world_size() == 1 or config.checkpoint.device_map != "cuda":
        return config
    own = {"device_map": f"cuda:{os.environ['LOCAL_RANK']}"}
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update=own)})
