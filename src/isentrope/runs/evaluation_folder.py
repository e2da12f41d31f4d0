"""The folder of an evaluation: chunks while it is made, whole tables when it is done.

eval_runs/<name>_<dataset>/
  config.yaml                    resolved; a restart with other settings is refused by key
  consolidated_metrics.csv       one row per step and decoding
  step_N/metrics.json            the same numbers as Estimates; its presence says the step is done
  step_N/records.parquet         one row per response
  step_N/.chunks/                finished chunks of prompts, until the step is done

Every file is written under another name and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from isentrope.files import csv_cell, parquet, write_bytes, write_json
from isentrope.formatting import known
from isentrope.runs.evaluation_result import EvaluationResult
from isentrope.runs.resume import require_same_origin

log = logging.getLogger("isentrope")

TABLE, NEW_TABLE = "consolidated_metrics.csv", "consolidated_metrics.new.csv"

METRICS = "metrics.json"

HEAD = ("checkpoint", "step", "decoding", "n_prompts", "samples_per_prompt")
"""Columns before those of the metrics."""

FIELDS = {"": "value", "_se": "se", "_ci_low": "ci_low", "_ci_high": "ci_high"}
"""Endings of a metric's columns, and the field of the Estimate in each."""


@dataclass(frozen=True)
class StepFolder:
    """The results of one checkpoint, and what they are made of while they are not there yet.

    Attributes:
        path: The folder.
        made_from: Digests of what the numbers depend on (`runs.origin`).
    """

    path: Path
    made_from: Mapping[str, str]

    @property
    def _chunks(self) -> Path:
        return self.path / ".chunks"

    def result(self) -> EvaluationResult | None:
        """What metrics.json holds, or None if the step is not done."""
        file = self.path / METRICS
        return EvaluationResult.load(file) if file.is_file() else None

    def require_same_origin(self) -> None:
        """Refuse to continue from results or chunks of other weights or data.

        Raises:
            ValueError: Naming which of them changed.
        """
        file = self._chunks / "made_from.json"
        done = self.result()
        if done is None and not file.is_file():
            return
        before = done.made_from if done else json.loads(file.read_text(encoding="utf-8"))
        require_same_origin(self.path, before, self.made_from)

    def begin(self) -> None:
        """Note what the chunks are made from."""
        write_json(self._chunks / "made_from.json", dict(self.made_from))

    def remove_chunks(self) -> None:
        """Let the chunks go, which a finished step does not need."""
        shutil.rmtree(self._chunks, ignore_errors=True)

    def has(self, decoding: str, number: int) -> bool:
        """Whether a chunk is done.

        Args:
            decoding: "sampled" or "greedy".
            number: Of the chunk, from 0.

        Returns:
            Whether its file is there; if it is, it is whole.
        """
        return self._file(decoding, number).is_file()

    def save(self, decoding: str, number: int, records: pd.DataFrame) -> None:
        """Write the records of a chunk."""
        write_bytes(self._file(decoding, number), parquet(records))

    def load(self, decoding: str, chunks: int) -> pd.DataFrame:
        """Join the chunks of a decoding, in order."""
        parts = [pd.read_parquet(self._file(decoding, number)) for number in range(chunks)]
        return pd.concat(parts, ignore_index=True)

    def finish(self, records: pd.DataFrame, result: EvaluationResult) -> None:
        """Write the step's tables, the one that says it is done last, and let the chunks go."""
        write_bytes(self.path / "records.parquet", parquet(records))
        replace(result, made_from=dict(self.made_from)).save(self.path / METRICS)
        self.remove_chunks()

    def _file(self, decoding: str, number: int) -> Path:
        return self._chunks / f"{decoding}_{number:06d}.parquet"


def table_of(results: Sequence[EvaluationResult], names: Sequence[str]) -> str:
    """The consolidated table.

    Args:
        results: One per checkpoint.
        names: The metrics.

    Returns:
        CSV: the columns `HEAD`, then four a metric; empty where there is no number.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*HEAD, *(f"{name}{end}" for name in names for end in FIELDS)])
    for result in results:
        for row in result.rows:
            head = (result.checkpoint, result.step, row.decoding, row.n_prompts)
            numbers = [
                None if (found := row.metrics[name]) is None else known(getattr(found, field))
                for name in names
                for field in FIELDS.values()
            ]
            cells = [*head, row.samples_per_prompt, *numbers]
            writer.writerow([csv_cell(cell) for cell in cells])
    return text.getvalue()


def write_table(folder: Path, results: Sequence[EvaluationResult], names: Sequence[str]) -> Path:
    """Write the consolidated table; where another program holds it open, beside it.

    Args:
        folder: The folder of the evaluation.
        results: One per checkpoint.
        names: The metrics.

    Returns:
        The file written.
    """
    content = table_of(results, names).encode()
    try:
        written = write_bytes(folder / TABLE, content)
    except PermissionError as error:
        written = write_bytes(folder / NEW_TABLE, content)
        log.warning(
            "%s cannot be replaced (%s), another program may have it open: the numbers are in %s.",
            folder / TABLE,
            error.strerror or error,
            written,
        )
        return written
    (folder / NEW_TABLE).unlink(missing_ok=True)
    return written
