"""The folder of an evaluation: chunks while it is made, whole tables when it is done.

eval_runs/<name>_<dataset>/
  config.yaml                    resolved; a restart with other settings is refused by key
  consolidated_metrics.csv       one row per step and decoding, and per group of prompts
  step_N/records.parquet         one row per response
  step_N/metrics.json            the same numbers as Estimates
  step_N/manifest.json           written last: digests of both; its presence says the step is done
  step_N/.chunks/                finished chunks of prompts, until the step is done; a chunk's name
                                 has a digest of its content, its number and `made_from`

Every file is written under another name and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import ConfigDict, Field

from isentrope.checkpoint.files import require_own_name
from isentrope.evaluation.records import RecordRow
from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate
from isentrope.nouns.saved import Absent
from isentrope.nouns.tables import table_schema
from isentrope.results.result import ResultsError, decode, encode
from isentrope.run.identity import Identity
from isentrope.run.places import METRICS
from isentrope.run.runner import Earlier
from isentrope.system.errors import FileError
from isentrope.system.file_contents import parquet, read_table
from isentrope.system.files import (
    MANIFEST,
    sha256,
    sha256_of_file,
    write_bytes,
    write_json,
    write_manifest,
)
from isentrope.system.formatting import known
from isentrope.system.manifest import verify
from isentrope.system.reading import read_json


@dataclass(frozen=True)
class RewardCounts:
    """How rewards are distributed.

    Attributes:
        edges: Of the bins, one more than there are bins.
        counts: Responses in each bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class EvaluatedRow:
    """The numbers of one decoding, of all prompts or of a group of them.

    Attributes:
        decoding: "sampled" or "greedy".
        n_prompts: Prompts.
        samples_per_prompt: Responses per prompt.
        metrics: By name; None where a metric has no value for this decoding.
        rewards: Of all responses.
        group: Of prompts; None for all of them.
    """

    decoding: str
    n_prompts: int
    samples_per_prompt: int
    metrics: dict[str, Estimate | None]
    rewards: RewardCounts
    group: Absent[str] = None


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The evaluation of one checkpoint.

    Attributes:
        schema: Of the file.
        checkpoint: Its name.
        path: Its folder.
        step: Its training step; None where its name has none.
        dataset: Name of the task.
        split: Of its prompts.
        temperature: Of sampling.
        max_new_tokens: Of a response.
        rows: One per decoding, each followed by one per group of prompts where they have groups.
        made_from: Digests of what the numbers depend on (`run.origin`).
        verified: Whether what it was made from was compared with its manifests (`--no-verify`).
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True)

    schema: str
    checkpoint: str
    path: str
    step: int | None
    dataset: str
    split: str
    temperature: float
    max_new_tokens: int
    rows: tuple[EvaluatedRow, ...]
    made_from: dict[str, str] = field(default_factory=dict)
    verified: Annotated[bool, Field(exclude_if=bool)] = True


_CURE = "Remove the folder to evaluate this checkpoint again."

HEAD = ("checkpoint", "step", "decoding", "n_prompts", "samples_per_prompt")
"""Columns before those of the metrics."""


@dataclass(frozen=True)
class StepFolder:
    """The results of one checkpoint, and what they are made of while they are not there yet.

    Attributes:
        path: The folder.
        made_from: Digests of what the numbers depend on (`run.origin`).
    """

    path: Path
    made_from: dict[str, str]

    @property
    def _chunks(self) -> Path:
        return self.path / ".chunks"

    def result(self) -> EvaluationResult | None:
        """What metrics.json holds, or None if the step is not done.

        A step with a manifest is done. One of an earlier version has none, and no chunks: a step
        with chunks and no manifest was stopped while it was finished, and is finished again.

        Returns:
            The result.

        Raises:
            FileError: If the step is done and a file of it was changed, cannot be read, or has the
                name of another.
        """
        is_finished = (self.path / MANIFEST).is_file()
        if not is_finished and (self._chunks.exists() or not (self.path / METRICS).is_file()):
            return None
        verify(self.path)
        file = self.path / METRICS
        result = decode(EvaluationResult, read_json(file, _CURE), file)
        require_own_name(self.path, result.checkpoint)
        return result

    def earlier(self) -> Earlier[EvaluationResult] | None:
        """What an earlier run left: a result, or the digests that its chunks are made from."""
        file = self._chunks / "made_from.json"
        result = self.result()
        if result is not None:
            return Earlier(Identity({}, result.made_from), result)
        return Earlier(Identity({}, read_json(file, _CURE)), None) if file.is_file() else None

    def begin(self) -> None:
        """Note what the chunks are made from."""
        write_json(self._chunks / "made_from.json", self.made_from)

    def remove_chunks(self) -> None:
        """Let the chunks go, which a finished step does not need."""
        shutil.rmtree(self._chunks, ignore_errors=True)

    def has(self, decoding: str, number: int) -> bool:
        """Whether a chunk is done: its file is there only when it is complete."""
        return bool(self._files(decoding, number))

    def save(self, decoding: str, number: int, records: pd.DataFrame) -> None:
        """Write the records of a chunk."""
        content = parquet(records)
        write_bytes(self._chunk(decoding, number, sha256([content])), content)

    def load(self, decoding: str, chunks: int) -> pd.DataFrame:
        """Join the chunks of a decoding, in order.

        Args:
            decoding: "sampled" or "greedy".
            chunks: Their number.

        Returns:
            The records of all of them.

        Raises:
            FileError: If a chunk was changed, or is another one under this one's name.
        """
        parts = []
        for number in range(chunks):
            files = self._files(decoding, number)
            if not files or files != [self._chunk(decoding, number, sha256_of_file(files[0]))]:
                raise FileError(
                    f"{self._chunks} does not have the chunk {number} ({decoding}) that was "
                    f"written: remove its files {decoding}_{number:06d}_*, and the same command "
                    "makes it again.",
                )
            parts.append(read_table(files[0], schema=table_schema(RecordRow)))
        return pd.concat(parts, ignore_index=True)

    def _chunk(self, decoding: str, number: int, content: str) -> Path:
        """The file of a chunk by the digest of its content, with a name that no other one has."""
        place = json.dumps([decoding, number, self.made_from, content], sort_keys=True)
        digest = sha256([place.encode()])[:32]
        return self._chunks / f"{decoding}_{number:06d}_{digest}.parquet"

    def finish(self, records: pd.DataFrame, result: EvaluationResult) -> EvaluationResult:
        """Write the step's tables and their manifest, which says it is done; let the chunks go.

        Returns:
            The result, as it is read back.
        """
        content = encode(result)
        write_bytes(self.path / "records.parquet", parquet(records))
        write_json(self.path / METRICS, content)
        write_manifest(self.path)
        self.remove_chunks()
        return decode(EvaluationResult, content, self.path / METRICS)

    def _files(self, decoding: str, number: int) -> list[Path]:
        return sorted(self._chunks.glob(f"{decoding}_{number:06d}_*.parquet"))


def finished(folder: Path) -> list[EvaluationResult]:
    """The results of an evaluation's checkpoints that are done, by step.

    Returns:
        One per checkpoint.

    Raises:
        FileError: If a file of one was changed.
        ResultsError: If one cannot be read.
    """
    stored = (StepFolder(path, {}).result() for path in sorted(folder.iterdir()) if path.is_dir())
    results = [result for result in stored if result is not None]
    return sorted(results, key=lambda result: -1 if result.step is None else result.step)


def table_of(results: Sequence[EvaluationResult]) -> pd.DataFrame:
    """The consolidated table: a row per checkpoint and decoding, with `HEAD` and four a metric.

    Returns:
        The table, with a column `group` (empty for all prompts) where there are groups; a cell is
        empty where there is no number.

    Raises:
        ResultsError: If a result lacks a metric that another has.
    """
    pairs = [(result, row) for result in results for row in result.rows]
    names = dict.fromkeys(name for _, row in pairs for name in row.metrics)
    rows: list[dict[str, Any]] = []
    for result, row in pairs:
        if missing := [name for name in names if name not in row.metrics]:
            raise ResultsError(
                f"{METRICS} of {result.checkpoint} has no {missing[0]} ({row.decoding}): "
                "remove its folder, and the same command evaluates it again."
            )
        head = {name: getattr(result, name) for name in ("checkpoint", "step")}
        head |= {name: getattr(row, name) for name in (*HEAD[2:], "group")}
        numbers = [e.columns(name) for name, e in row.metrics.items() if e is not None]
        cells = {name: known(x) for columns in numbers for name, x in columns.items()}
        rows.append(head | cells)
    group = ["group"] if any(row.group for _, row in pairs) else []
    columns = [*HEAD, *group, *(name + end for name in names for end in ESTIMATE_COLUMNS.values())]
    return pd.DataFrame(rows, columns=columns, dtype=object)
