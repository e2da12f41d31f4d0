"""What a run folder holds, and what it lacks, before anything is drawn.

    <run>/measurements/<verb>_<name>/results.json, *.parquet      `Measurement`
    <run>/logs/metrics.jsonl                                      `metrics`
    <run>/evaluation, eval_runs/*: step_N/metrics.json            `Evaluation`

A file that cannot be read, or a measurement that was begun and not finished, is no error: the rest
is reported, and a sentence says what is not there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name as load
from typing import Any, Generic, TypeVar

import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.reports.evaluations import (
    Evaluation,
    Sections,
    find_evaluations,
    provenance_of,
    read_sections,
)
from isentrope.reports.panel import Row, Source
from isentrope.results.result import Result
from isentrope.results.verbs import VERBS
from isentrope.runs.origin import require_of_run
from isentrope.system.checkpoint_folder import step_within
from isentrope.system.errors import IsentropeError
from isentrope.system.reading import parse_json, reading

KINDS: dict[type[Result], str] = {
    load(verb.result): verb.absent for verb in VERBS.values() if verb.absent
}
"""The results that are reported, and what is said where there is none."""

R = TypeVar("R", bound=Result)
T = TypeVar("T")


@dataclass(frozen=True)
class Measurement(Generic[R]):
    """What one verb found at one checkpoint.

    Attributes:
        name: The checkpoint's, with the number of the repeat if there is one.
        folder: Where it is.
        result: What was found.
    """

    name: str
    folder: Path
    result: R

    @property
    def step(self) -> int | None:
        """The training step in the checkpoint's name."""
        return step_within(self.name)

    def compared(
        self, quantities: Mapping[str, tuple[Estimate | None, str]]
    ) -> tuple[dict[str, Estimate], dict[str, pd.Series]]:
        """Numbers that another run's may be compared with.

        Args:
            quantities: An estimate, or None, and the quantity of the table of influences.

        Returns:
            Those that are there, and the influences of E's prompts on them by key, where known.
        """
        numbers = {name: e for name, (e, _) in quantities.items() if e is not None}
        table = self.result.tables.get("influences")
        if table is None or table["key"].isna().any():
            return numbers, {}
        rows = {str(q): of.set_index("key")["influence"] for q, of in table.groupby("quantity")}
        return numbers, {name: rows[q] for name, (_, q) in quantities.items() if q in rows}

    def source(self, *files: str) -> Source:
        """Where a panel that is drawn from it comes from."""
        command = f"isentrope {self.result.verb} {self.folder / 'config.yaml'} --out NEW_FOLDER"
        paths = tuple(str(self.folder / file) for file in files or ("results.json",))
        return Source(command, paths, self.result.provenance)


Measurements = dict[type[Result], dict[str, Measurement[Any]]]
"""By kind of result and name, in the order of steps."""


@dataclass(frozen=True)
class Reading:
    """A run, read.

    Attributes:
        folder: The run folder.
        config: The content of its config.yaml; empty if there is none.
        measurements: What was measured.
        metrics: One row per training step; None without a training log.
        evaluations: Those of this run's checkpoints.
        focus: The checkpoint that is shown in full.
        missing: Sentences on what is not there.
    """

    folder: Path
    config: Sections
    measurements: Measurements
    metrics: pd.DataFrame | None
    evaluations: list[Evaluation]
    focus: str | None
    missing: list[str] = field(default_factory=list)

    def shown(self, kind: type[R]) -> Measurement[R] | None:
        """What a verb found at the checkpoint in focus; None if there is nothing."""
        return self.measurements[kind].get(self.focus or "")

    def logged(self, *columns: str) -> pd.DataFrame | None:
        """The rows of the training log in which these have values; None where there are none."""
        if self.metrics is None or not set(columns) <= set(self.metrics.columns):
            return None
        rows = self.metrics.dropna(subset=list(columns))
        return rows if len(rows) else None

    def training_source(self) -> Source:
        """Where training curves come from."""
        made_with = provenance_of(self.config)
        seed = self.config.get("training", {}).get("seed")
        if seed is not None and not made_with.seeds:
            made_with = replace(made_with, seeds={"training": seed})
        path = self.folder / "logs" / "metrics.jsonl"
        command = f"isentrope train {self.folder / 'config.yaml'} --out NEW_FOLDER"
        return Source(command, (str(path),), made_with)


def as_far_as_readable(
    found: Reading, what: str, *draws: Callable[[Reading], Iterable[T]]
) -> list[T]:
    """What each draws of the results; where one cannot be read, a sentence on `what` alone."""
    try:
        with reading(found.folder):
            return [drawn for draw in draws for drawn in draw(found)]
    except (IsentropeError, FileNotFoundError) as error:
        found.missing.append(f"{what}: left out, because {error}")
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
    focus = _focus(measurements, checkpoint, folder)
    for kind, of in measurements.items():
        if not of:
            missing.append(f"{KINDS[kind]}: run isentrope {kind.verb}.")
        elif focus not in of:
            on = f"{', '.join(of)}, and not on {focus}, which is shown here"
            missing.append(f"{kind.verb} was run on {on}.")
    if metrics is None:
        missing.append("There is no training log: the run was not made by isentrope train.")
    if not evaluated:
        missing.append("There is no evaluation of this run: run isentrope evaluate.")
    sections = read_sections(folder, missing)
    return Reading(folder, sections, measurements, metrics, evaluated, focus, missing)


def _measurements(folder: Path, missing: list[str]) -> Measurements:
    kinds = {kind.verb: kind for kind in KINDS}
    by_kind: Measurements = {kind: {} for kind in KINDS}
    for path in sorted((folder / "measurements").glob("*")):
        verb, _, name = path.name.lstrip(".").partition("_")
        if verb not in kinds or not path.is_dir():
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
        by_kind[kinds[verb]][name] = Measurement(name, path, result)
    return {
        kind: dict(sorted(of.items(), key=lambda item: (item[1].step or 0, item[0])))
        for kind, of in by_kind.items()
    }


def _metrics(folder: Path, missing: list[str]) -> pd.DataFrame | None:
    path = folder / "logs" / "metrics.jsonl"
    if not path.exists():
        return None
    rows, lost = read_log(path)
    if lost:
        missing.append(f"{lost} lines of {path} cannot be read, and are left out.")
    return pd.DataFrame(rows) if rows else None


def _focus(measurements: Measurements, asked: str | None, folder: Path) -> str | None:
    """The checkpoint asked for; else the last of those with the most results, no repeat."""
    names = [name for of in measurements.values() for name in of]
    if asked is not None and asked not in names:
        every = ", ".join(dict.fromkeys(names)) or "none"
        raise ValueError(f"{folder} has no measurement of {asked!r}; it has {every}.")
    if asked is not None or not names:
        return asked
    return max(names, key=lambda n: (names.count(n), step_within(n) or 0, "_repeat_" not in n, n))


def read_log(path: str | Path) -> tuple[list[Row], int]:
    """The lines of a log that have a step and numbers alone, and how many others there are."""
    with reading(path) as file:
        lines = file.read_bytes().decode(errors="replace").split("\n")
    read = [_numbers(line) for line in lines if line.strip()]
    rows = [row for row in read if row is not None]
    return rows, len(read) - len(rows)


def _numbers(line: str) -> Row | None:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    plain = all(x is None or isinstance(x, (int, float)) for x in row.values())
    return row if plain and 0 <= row["step"] < 2**53 else None
