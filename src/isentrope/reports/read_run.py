"""What a run folder holds, and what it lacks, before anything is drawn.

    <run>/measurements/<verb>_<name>/results.json, *.parquet      `Measurement`
    <run>/logs/metrics.jsonl, timing.jsonl                        `metrics`
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
    again,
    find_evaluations,
    provenance_of,
    read_sections,
)
from isentrope.reports.panel import Source
from isentrope.reports.words import Row
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


class NotMeasuredError(IsentropeError):
    """What a panel or a sentence is about was not measured at the checkpoint in focus."""


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

    @property
    def source(self) -> Source:
        """Where a panel that is drawn from it comes from."""
        command = again(self.result.verb, self.folder)
        return Source(command, str(self.folder), self.result.provenance)


@dataclass(frozen=True)
class Reading:
    """A run, read.

    Attributes:
        folder: The run folder.
        config: The content of its config.yaml; empty if there is none.
        measurements: What was measured, in the order of steps.
        metrics: One row per training step; empty without a training log.
        evaluations: Those of this run's checkpoints.
        focus: The checkpoint that is shown in full.
        missing: Sentences on what is not there.
    """

    folder: Path
    config: Sections
    measurements: list[Measurement[Any]]
    metrics: pd.DataFrame
    evaluations: list[Evaluation]
    focus: str | None
    missing: list[str] = field(default_factory=list)

    def of(self, kind: type[R]) -> list[Measurement[R]]:
        """What a verb found, in the order of steps."""
        return [one for one in self.measurements if type(one.result) is kind]

    def found(self, kind: type[R]) -> Measurement[R] | None:
        """What a verb found at the checkpoint in focus; None if there is nothing."""
        return next((one for one in self.of(kind) if one.name == self.focus), None)

    def shown(self, kind: type[R]) -> Measurement[R]:
        """What a verb found at the checkpoint in focus.

        Returns:
            The measurement.

        Raises:
            NotMeasuredError: If there is none.
        """
        if (found := self.found(kind)) is None:
            raise NotMeasuredError(f"{kind.verb} was not run on {self.focus}.")
        return found

    def logged(self, *columns: str) -> pd.DataFrame:
        """The rows of the training log in which these have values."""
        if not set(columns) <= set(self.metrics):
            return self.metrics[:0]
        return self.metrics.dropna(subset=list(columns))

    @property
    def source(self) -> Source:
        """Where training curves come from."""
        made_with = provenance_of(self.config)
        seed = self.config.get("training", {}).get("seed")
        if seed is not None and not made_with.seeds:
            made_with = replace(made_with, seeds={"training": seed})
        return Source(again("train", self.folder), str(self.folder / "logs"), made_with)


def as_far_as_readable(
    found: Reading, what: str, *draws: Callable[[Reading], Iterable[T]]
) -> list[T]:
    """What each draws of the results.

    Args:
        found: The run.
        what: What is drawn, for the sentence on what cannot be read.
        *draws: Functions; one whose results were not measured draws nothing.

    Returns:
        Everything that was drawn.
    """
    drawn = list[T]()
    for draw in draws:
        try:
            with reading(found.folder):
                drawn += draw(found)
        except NotMeasuredError:
            continue
        except (IsentropeError, FileNotFoundError) as error:
            found.missing.append(f"{what}: left out, because {error}")
    return drawn


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
    focus = _focus(measurements, checkpoint, folder)
    if focus is None and not len(metrics) and not evaluated:
        raise ValueError(
            f"{folder} holds no training log, measurement or evaluation: make one first, for "
            f"example with isentrope measure CONFIG --out {folder}."
        )
    for kind, absent in KINDS.items():
        names = [one.name for one in measurements if type(one.result) is kind]
        if not names:
            missing.append(f"{absent}: run isentrope {kind.verb}.")
        elif focus not in names:
            on = f"{', '.join(names)}, and not on {focus}, which is shown here"
            missing.append(f"{kind.verb} was run on {on}.")
    if not len(metrics):
        missing.append("There is no training log: the run was not made by isentrope train.")
    if not evaluated:
        missing.append("There is no evaluation of this run: run isentrope evaluate.")
    sections = read_sections(folder, missing)
    return Reading(folder, sections, measurements, metrics, evaluated, focus, missing)


def _measurements(folder: Path, missing: list[str]) -> list[Measurement[Any]]:
    kinds = {kind.verb: kind for kind in KINDS}
    found: list[Measurement[Any]] = []
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
        found.append(Measurement(name, path, result))
    return sorted(found, key=lambda one: (one.step or 0, one.name))


def _metrics(folder: Path, missing: list[str]) -> pd.DataFrame:
    """The training log, with the times of the steps; empty where there is none."""
    tables = list[pd.DataFrame]()
    for name in ("metrics.jsonl", "timing.jsonl"):
        path = folder / "logs" / name
        rows, lost = read_log(path) if path.exists() else ([], 0)
        if lost:
            missing.append(f"{lost} lines of {path} cannot be read, and are left out.")
        tables.append(pd.DataFrame(rows))
    metrics, times = tables
    if not len(metrics) or not len(times):
        return metrics
    times = times.drop_duplicates("step", keep="last")
    return metrics.merge(times, "left", on="step", suffixes=("", " of timing.jsonl"))


def _focus(measurements: list[Measurement[Any]], asked: str | None, folder: Path) -> str | None:
    """The checkpoint asked for; else the last of those with the most results, no repeat."""
    names = [one.name for one in measurements]
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
