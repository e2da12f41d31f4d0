"""Logs of a run, and evaluations that belong to it: they name one of its checkpoints.

Numbers of evaluations are those of the checkpoints' metrics.json, which a manifest covers, and not
those of the consolidated table.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from isentrope.config.io import ConfigError, read_yaml
from isentrope.control.budget_options import BudgetOptions
from isentrope.estimators.functional import UNITS
from isentrope.evaluation.pass_at_k import prompt_scores
from isentrope.evaluation.records import RecordRow
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.tables import table_schema
from isentrope.reports.panel import Source
from isentrope.results.header import Provenance
from isentrope.run.evaluation_folder import EvaluatedRow, EvaluationResult, finished
from isentrope.run.origin import require_of_run
from isentrope.run.places import TABLE, places_of_evaluations, require_table
from isentrope.system.errors import IsentropeError
from isentrope.system.file_contents import read_table
from isentrope.system.manifest import NOT_VERIFIED
from isentrope.training.run_files import lost_line, misplaced_line, read_log


class Gaps(list[str]):
    """Sentences on what is not there; those on what is there and cannot be read, also apart."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable = list[str]()

    def add_unreadable(self, sentence: str) -> None:
        """Say what cannot be read."""
        self.append(sentence)
        self.unreadable.append(sentence)


Sections = Mapping[str, Mapping[str, Any]]
"""Keys and values of a config.yaml by section."""


def read_sections(folder: Path, missing: Gaps | None = None) -> Sections:
    """The sections of a config.yaml, perhaps of an earlier version; empty if it is unreadable."""
    path = folder / "config.yaml"
    try:
        content = read_yaml(path) if path.exists() else {}
    except ConfigError as error:
        content = {}
        if missing is not None:
            missing.add_unreadable(str(error))
    return {key: value for key, value in content.items() if isinstance(value, dict)}


def provenance_of(config: Sections) -> Provenance:
    """With what a run was made."""
    names = {field.name for field in fields(Provenance)}
    content = config.get("provenance", {})
    return Provenance(**{key: value for key, value in content.items() if key in names and value})


def unit_of_log(config: Sections, column: str) -> str:
    """The unit of entropy in a column of a training log, and of its changes.

    Args:
        config: Of the run.
        column: Its name.

    Returns:
        That of the probe's functional, or the control's, where the column is theirs.
    """
    functional = "per_token"
    if column.startswith(("probe/", "price/")):
        functional = config.get("entropy_probe", {}).get("functional", functional)
    control = config.get("control", {})
    if column.startswith("control/") and control.get("name") == "budget":
        options = control.get("options") or {}
        functional = options.get("functional", BudgetOptions().functional)
    return UNITS.get(str(functional), "nats")


def again(verb: str, folder: Path) -> str:
    """The command that makes the results in a folder again."""
    return f"isentrope {verb} {folder / 'config.yaml'} --out NEW_FOLDER"


@dataclass(frozen=True)
class RunEvaluation:
    """The numbers of one evaluation.

    Attributes:
        folder: Where it is.
        results: Of its checkpoints, by step.
        source: Where panels of it come from.
    """

    folder: Path
    results: list[EvaluationResult]
    source: Source

    def sampled(self) -> Iterator[tuple[float, EvaluatedRow]]:
        """Step and row of the sampled responses to all prompts."""
        for result in self.results:
            step = math.nan if result.step is None else result.step
            for row in result.rows:
                if row.decoding == "sampled" and row.group is None:
                    yield step, row

    def along(self, metric: str) -> tuple[list[float], list[Estimate]]:
        """A metric of the sampled responses: steps that have it, and its estimates."""
        estimates = [(step, row.metrics.get(metric)) for step, row in self.sampled()]
        return [step for step, e in estimates if e], [e for _, e in estimates if e]

    def by_group(self, metric: str) -> dict[str, Estimate]:
        """A metric of the sampled responses to each group of prompts, at the last step."""
        rows = (row for row in self.results[-1].rows if row.decoding == "sampled")
        estimates = {row.group: row.metrics.get(metric) for row in rows}
        return {group: e for group, e in estimates.items() if group is not None and e is not None}

    def scores(self, step: float, ks: Sequence[int]) -> dict[int, pd.Series]:
        """pass@k of each prompt by its key, of sampled responses; empty where keys are unknown."""
        path = self.folder / f"step_{step:.0f}" / "records.parquet"
        if not path.is_file():
            return {}
        records = read_table(path, schema=table_schema(RecordRow))
        if "decoding" in records:
            records = records[records["decoding"] == "sampled"]
        if not len(records) or records["key"].isna().any():
            return {}
        right = records.groupby("key", sort=True)["right"].agg(["size", "sum"])
        drawn, correct = torch.tensor(right.to_numpy()).T
        possible = [k for k in ks if k <= int(drawn.min())]
        return {
            k: pd.Series(prompt_scores(drawn, correct, k).numpy(), right.index) for k in possible
        }


def find_evaluations(run: Path, places: Sequence[str | Path], missing: Gaps) -> list[RunEvaluation]:
    """The evaluations of a run: those named, that in its own folder, and those that name it.

    Returns:
        In that order, and by name.

    Raises:
        FileNotFoundError: If a folder that was named has no table.
    """
    folders = {Path(folder).resolve(): Path(folder) for folder in places}
    for folder in folders.values():
        require_table(folder)
    candidates = [
        path for folder in places_of_evaluations(run) for path in sorted(folder.glob("*"))
    ]
    of_run = [path for path in candidates if _names(read_sections(path), run)]
    for folder in [run / "evaluation", *of_run]:
        if (folder / TABLE).exists():
            folders.setdefault(folder.resolve(), folder)
    return [evaluation for folder in folders.values() for evaluation in _read(run, folder, missing)]


def _names(config: Sections, run: Path) -> bool:
    paths = config.get("checkpoint", {}).get("checkpoint_path") or []
    return any(
        Path(path).resolve().is_relative_to(run.resolve())
        for path in ([paths] if isinstance(paths, str) else paths)
    )


def _read(run: Path, folder: Path, missing: Gaps) -> Iterator[RunEvaluation]:
    try:
        results = finished(folder)
        for result in results:
            name = result.checkpoint
            require_of_run(run, folder / name, name, result.made_from)
    except (OSError, IsentropeError) as error:
        missing.add_unreadable(f"{error} The evaluation is left out.")
        return
    if not results:
        missing.append(f"{folder} has no finished checkpoint yet: the evaluation is left out.")
        return
    if unverified := [result.checkpoint for result in results if not result.verified]:
        missing.append(f"{folder}, {', '.join(unverified)}: {NOT_VERIFIED}")
    made_with = provenance_of(read_sections(folder))
    yield RunEvaluation(
        folder, results, Source(again("evaluate", folder), str(folder / TABLE), made_with)
    )


def read_metrics(run: Path, missing: Gaps) -> pd.DataFrame:
    """The training log, with the times of the steps; empty where there is none."""
    tables = list[pd.DataFrame]()
    for name in ("metrics.jsonl", "timing.jsonl"):
        path = run / "logs" / name
        rows, lost = read_log(path) if path.exists() else ([], 0)
        if lost:
            missing.append(f"{lost} lines of {path} cannot be read, and are left out.")
        steps = [int(row["step"]) for row in rows]
        if fault := misplaced_line(steps):
            missing.add_unreadable(
                f"{path} has {fault[1]}: its numbers are left out. Restore the file."
            )
            rows = []
        elif steps and (fault := lost_line(steps, steps[-1])):
            missing.append(f"{path} has {fault[1]}, which curves pass over.")
        tables.append(pd.DataFrame(rows))
    metrics, times = tables
    if not len(metrics) or not len(times):
        return metrics
    return metrics.merge(times, "left", on="step", suffixes=("", " of timing.jsonl"))
