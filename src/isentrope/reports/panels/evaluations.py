"""Evaluations that belong to a run: their configuration names one of its checkpoints.

Numbers are those of the checkpoints' metrics.json, which a manifest covers; the consolidated table
is read where only that was copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from isentrope.evaluation.pass_at_k import prompt_scores
from isentrope.reports.panel import Source
from isentrope.reports.run_config import Sections, provenance_of, read_sections
from isentrope.results.columns import RECORDS
from isentrope.runs.evaluation_folder import HEAD, columns_of, finished, rows_of
from isentrope.runs.evaluation_result import EvaluationResult
from isentrope.runs.origin import require_of_run
from isentrope.system.errors import IsentropeError
from isentrope.system.manifest import NOT_VERIFIED
from isentrope.system.reading import read_csv, read_table

TABLES = ("consolidated_metrics.new.csv", "consolidated_metrics.csv")
"""The first is there where another program held the second open."""


@dataclass(frozen=True)
class Evaluation:
    """The table of one evaluation.

    Attributes:
        folder: Where it is.
        table: One row per step and decoding; each metric M with M_se, M_ci_low, M_ci_high.
        config: What was asked.
        file: The table's name.
    """

    folder: Path
    table: pd.DataFrame
    config: Sections
    file: str

    def sampled(self) -> pd.DataFrame:
        """Rows of sampled responses, by step; those of any decoding where there are none."""
        rows = self.table[self.table["decoding"] == "sampled"]
        return (rows if len(rows) else self.table).sort_values("step")

    def scores(self, step: float, ks: Sequence[int]) -> dict[int, pd.Series]:
        """pass@k of each prompt by its key, of sampled responses; empty where keys are unknown."""
        path = self.folder / f"step_{step:.0f}" / "records.parquet"
        if not path.is_file():
            return {}
        records = read_table(path, schema=RECORDS)
        if "decoding" in records:
            records = records[records["decoding"] == "sampled"]
        if not len(records) or records["key"].isna().any():
            return {}
        right = records.groupby("key", sort=True)["right"]
        drawn, correct = (torch.tensor(x.tolist()) for x in (right.size(), right.sum()))
        names = right.size().index
        known = [k for k in ks if k <= int(drawn.min())]
        return {k: pd.Series(prompt_scores(drawn, correct, k).numpy(), names) for k in known}

    def source(self) -> Source:
        """Where a panel of it comes from."""
        command = f"isentrope evaluate {self.folder / 'config.yaml'} --out NEW_FOLDER"
        return Source(command, (str(self.folder / self.file),), provenance_of(self.config))


def find_evaluations(
    run: Path, named: Sequence[str | Path], missing: list[str]
) -> list[Evaluation]:
    """The evaluations of a run.

    Returns:
        In the order of their names.

    Raises:
        FileNotFoundError: If a folder that was named has no table.
    """
    folders = []
    for folder in named:
        if _table_file(Path(folder)) is None:
            raise FileNotFoundError(f"{folder} has no {TABLES[1]}: give a folder of eval_runs/.")
        folders.append(Path(folder))
    beside = {base / "eval_runs" for base in (Path(), run.resolve().parent.parent)}
    own = run / "evaluation"
    if _table_file(own) and own.resolve() not in {other.resolve() for other in folders}:
        folders.append(own)
    for folder in sorted({p.resolve() for base in beside for p in base.glob("*") if p.is_dir()}):
        known = {other.resolve() for other in folders}
        if folder not in known and _table_file(folder) and _names(read_sections(folder), run):
            folders.append(_short(folder))
    read = (_read(run, folder, missing) for folder in folders)
    return [evaluation for evaluation in read if evaluation is not None]


def _table_file(folder: Path) -> Path | None:
    return next((folder / name for name in TABLES if (folder / name).exists()), None)


def _short(folder: Path) -> Path:
    here = Path().resolve()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _names(config: Sections, run: Path) -> bool:
    paths = config.get("checkpoint", {}).get("checkpoint_path") or []
    return any(
        Path(path).resolve().is_relative_to(run.resolve())
        for path in ([paths] if isinstance(paths, str) else paths)
    )


def _read(run: Path, folder: Path, missing: list[str]) -> Evaluation | None:
    path = _table_file(folder)
    assert path is not None
    try:
        results = finished(folder)
        for result in results:
            name = result.checkpoint
            require_of_run(run, folder / name, name, result.made_from)
        table = _table_of(results) if results else read_csv(path)
    except (OSError, IsentropeError) as error:
        missing.append(f"{error} The evaluation is left out.")
        return None
    if not {"step", "decoding"} <= set(table.columns) or not len(table):
        missing.append(f"{path} has no rows yet: the evaluation is left out.")
        return None
    if unverified := [result.checkpoint for result in results if not result.verified]:
        missing.append(f"{folder}, {', '.join(unverified)}: {NOT_VERIFIED}")
    return Evaluation(folder, table, read_sections(folder), path.name)


def _table_of(results: Sequence[EvaluationResult]) -> pd.DataFrame:
    """The numbers as they are in the verified metrics.json of each checkpoint."""
    names = [*results[0].rows[0].metrics]
    table = pd.DataFrame(rows_of(results, names), columns=columns_of(names))
    numbers = [name for name in table.columns if name not in HEAD]
    return table.astype(dict.fromkeys(numbers, float))
