"""What a run folder holds, and what it lacks, before anything is drawn.

    <run>/measurements/<verb>_<name>/results.json, *.parquet      `Measurement`
    <run>/logs/metrics.jsonl                                      `metrics`
    <run>/evaluation, eval_runs/*: step_N/metrics.json            `Evaluation`

A file that cannot be read, or a measurement that was begun and not finished, is no error: the rest
is reported, and a sentence says what is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from isentrope.reports.panel import Source
from isentrope.reports.panels.evaluations import Evaluation, find_evaluations
from isentrope.reports.run_config import Sections, provenance_of, read_sections
from isentrope.results.result import Result
from isentrope.results.results import (
    AuditResult,
    InfluenceResult,
    KernelResult,
    MeasureResult,
    NoiseResult,
)
from isentrope.runs.log_lines import read_log
from isentrope.runs.origin import require_of_run
from isentrope.system.checkpoint_names import step_within
from isentrope.system.errors import IsentropeError
from isentrope.system.reading import reading as files_of

KINDS = (MeasureResult, InfluenceResult, KernelResult, NoiseResult, AuditResult)
VERBS = tuple(kind.verb for kind in KINDS)

R = TypeVar("R", bound=Result)
T = TypeVar("T")


@dataclass(frozen=True)
class Measurement(Generic[R]):
    """What one verb found at one checkpoint.

    Attributes:
        verb: Of VERBS.
        name: The checkpoint's, with the number of the repeat if there is one.
        folder: Where it is.
        result: What was found.
    """

    verb: str
    name: str
    folder: Path
    result: R

    @property
    def step(self) -> int | None:
        """The training step in the checkpoint's name."""
        return step_within(self.name)

    def table(self, name: str) -> pd.DataFrame | None:
        """One of its tables, by the file's name without suffix; None if it was not written."""
        return self.result.tables.get(name)

    def influences(self, quantities: Mapping[str, str]) -> dict[str, pd.Series]:
        """Influences of E's prompts by their keys, of quantities by the names given to them."""
        table = self.table("influences")
        if table is None or table["key"].isna().any():
            return {}
        rows = {str(q): of.set_index("key")["influence"] for q, of in table.groupby("quantity")}
        return {name: rows[q] for name, q in quantities.items() if q in rows}

    def source(self, *files: str) -> Source:
        """Where a panel that is drawn from it comes from."""
        command = f"isentrope {self.verb} {self.folder / 'config.yaml'} --out NEW_FOLDER"
        paths = tuple(str(self.folder / file) for file in files or ("results.json",))
        return Source(command, paths, self.result.provenance)


@dataclass(frozen=True)
class Reading:
    """A run, read.

    Attributes:
        folder: The run folder.
        config: The content of its config.yaml; empty if there is none.
        measurements: By verb and name, in the order of steps.
        metrics: A row a training step; None without a training log.
        evaluations: Those of this run's checkpoints.
        focus: The checkpoint that is shown in full.
        missing: Sentences on what is not there.
    """

    folder: Path
    config: Sections
    measurements: dict[str, dict[str, Measurement[Any]]]
    metrics: pd.DataFrame | None
    evaluations: list[Evaluation]
    focus: str | None
    missing: list[str] = field(default_factory=list)

    def shown(self, kind: type[R]) -> Measurement[R] | None:
        """What a verb found at the checkpoint in focus; None if there is nothing."""
        return self.measurements[kind.verb].get(self.focus or "")

    def of(self, kind: type[R]) -> list[Measurement[R]]:
        """What a verb found at every checkpoint."""
        return list(self.measurements[kind.verb].values())

    def training_source(self) -> Source:
        """Where training curves come from."""
        made_with = provenance_of(self.config)
        seed = self.config.get("training", {}).get("seed")
        if seed is not None and not made_with.seeds:
            made_with = replace(made_with, seeds={"training": seed})
        path = self.folder / "logs" / "metrics.jsonl"
        command = f"isentrope train {self.folder / 'config.yaml'} --out NEW_FOLDER"
        return Source(command, (str(path),), made_with)


def as_far_as_readable(reading: Reading, what: str, draw: Callable[[], list[T]]) -> list[T]:
    """What `draw` makes of the results; where one cannot be read, a sentence on `what` alone."""
    try:
        with files_of(reading.folder):
            return draw()
    except (IsentropeError, FileNotFoundError) as error:
        reading.missing.append(f"{what}: left out, because {error}")
        return []


def read_run(
    folder: str | Path, *, checkpoint: str | None = None, evaluations: Sequence[str | Path] = ()
) -> Reading:
    """Read everything that a run folder holds.

    Args:
        folder: The run folder.
        checkpoint: The one to show in full; None for the last that was measured.
        evaluations: Folders of evaluations, beside those that name this run.

    Returns:
        What is there, and sentences on what is not.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If it holds nothing to report, or not the checkpoint asked for.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a directory: give the directory of a run.")
    missing: list[str] = []
    measurements = _measurements(folder, missing)
    metrics = _metrics(folder, missing)
    evaluated = find_evaluations(folder, evaluations, missing)
    if metrics is None and not evaluated and not any(measurements.values()):
        raise ValueError(
            f"{folder} holds no training log, measurement or evaluation: make one first, for "
            f"example with isentrope measure CONFIG --out {folder}."
        )
    missing += _absent(measurements, metrics, evaluated)
    focus = _focus(measurements, checkpoint, folder)
    missing += _not_at(focus, measurements)
    sections = read_sections(folder, missing)
    return Reading(folder, sections, measurements, metrics, evaluated, focus, missing)


def _measurements(folder: Path, missing: list[str]) -> dict[str, dict[str, Measurement[Any]]]:
    kinds = {kind.verb: kind for kind in KINDS}
    by_verb: dict[str, dict[str, Measurement[Any]]] = {verb: {} for verb in VERBS}
    for path in sorted((folder / "measurements").glob("*")):
        verb, _, name = path.name.lstrip(".").partition("_")
        if verb not in VERBS or not path.is_dir():
            continue
        if path.name.startswith("."):
            missing.append(f"{verb} of {name.removesuffix('.partial')} was begun and not finished.")
            continue
        try:
            result = kinds[verb].load(path)
            made_from = result.provenance.made_from
            require_of_run(folder, path, Path(result.policy.checkpoint).name, made_from)
        except IsentropeError as error:
            missing.append(f"{error} {verb} is left out.")
            continue
        by_verb[verb][name] = Measurement(verb, name, path, result)
    return {verb: dict(sorted(of.items(), key=_order)) for verb, of in by_verb.items()}


def _order(item: tuple[str, Any]) -> tuple[int, str]:
    step = step_within(item[0])
    return (-1 if step is None else step, item[0])


def _metrics(folder: Path, missing: list[str]) -> pd.DataFrame | None:
    path = folder / "logs" / "metrics.jsonl"
    if not path.exists():
        return None
    rows, lost = read_log(path)
    if lost:
        missing.append(f"{lost} lines of {path} cannot be read, and are left out.")
    return pd.DataFrame(rows) if rows else None


def _absent(
    measurements: dict[str, dict[str, Measurement[Any]]],
    metrics: pd.DataFrame | None,
    evaluations: list[Evaluation],
) -> list[str]:
    lacks = {
        "measure": "There is no ΔH(η)",
        "influence": "There is no attribution to sequences and tokens",
        "kernel": "There is no Fisher kernel",
        "noise": "There are no noise scales",
        "audit": "There is no audit of proxies",
    }
    texts = [f"{lacks[verb]}: run isentrope {verb}." for verb in VERBS if not measurements[verb]]
    if metrics is None:
        texts.append("There is no training log: the run was not made by isentrope train.")
    if not evaluations:
        texts.append("There is no evaluation of this run: run isentrope evaluate.")
    return texts


def _focus(
    measurements: dict[str, dict[str, Measurement[Any]]], asked: str | None, folder: Path
) -> str | None:
    names = dict.fromkeys(name for verb in VERBS for name in measurements[verb])
    if asked is not None and asked not in names:
        raise ValueError(
            f"{folder} has no measurement of {asked!r}; it has {', '.join(names) or 'none'}."
        )
    if asked is not None or not names:
        return asked
    most = max(sum(name in measurements[verb] for verb in VERBS) for name in names)
    whole = [n for n in names if sum(n in measurements[verb] for verb in VERBS) == most]
    return sorted(whole, key=lambda name: (_order((name, None))[0], "_repeat_" not in name))[-1]


def _not_at(focus: str | None, measurements: dict[str, dict[str, Measurement[Any]]]) -> list[str]:
    return [
        f"{verb} was run on {', '.join(of)}, and not on {focus}, which is shown here."
        for verb, of in measurements.items()
        if of and focus not in of
    ]
