"""What a run folder holds, and what it lacks, before anything is drawn.

    <run>/measurements/<verb>_<name>/results.json, *.parquet      `Measurement`
    <run>/logs/metrics.jsonl, timing.jsonl                        `metrics`
    <run>/evaluation, eval_runs/*: step_N/metrics.json            `Evaluation`

A file that cannot be read, or a measurement that was begun and not finished, is no error: the rest
is reported, and a sentence says what is not there.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name as load
from typing import Any, Generic, TypeVar

import pandas as pd

from isentrope.checkpoint.files import step_within
from isentrope.nouns.estimate import ESTIMATE_COLUMNS, Estimate
from isentrope.reports.evaluations import (
    Evaluation,
    Sections,
    again,
    find_evaluations,
    provenance_of,
    read_metrics,
    read_sections,
)
from isentrope.reports.panel import Source
from isentrope.reports.words import within_one_se
from isentrope.results.result import Result
from isentrope.results.results import MeasureResult
from isentrope.results.verbs import VERBS
from isentrope.run.origin import require_of_run
from isentrope.run.study_table import numbers_in
from isentrope.system.errors import IsentropeError
from isentrope.system.reading import reading
from isentrope.training.rollout_digests import rollout_faults
from isentrope.training.run_files import RunFiles

KINDS: dict[type[Result], str] = {
    load(verb.result): verb.absent for verb in VERBS.values() if verb.absent
}
"""The results that are reported, and what is said where there is none."""

OWN, MOVED = ("UU", "EE"), ("EU", "FU")
"""Blocks of a batch with itself, and of measured responses with U; the first there is is shown."""

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

    @property
    def unit(self) -> str:
        """Of entropy and its changes; empty where the result has none of its own."""
        return self.result.unit if isinstance(self.result, MeasureResult) else ""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Every number that has an error, by its dotted path in results.json."""
        found, prompts = dict[str, Estimate](), self.result.batches.E.prompt_draws
        for path, row in numbers_in(vars(self.result)):
            value, se, low, high = (
                math.nan if row[x] is None else row[x] for x in ESTIMATE_COLUMNS
            )
            n, unit = row["n"] or prompts, row["unit"] or ""
            found[path] = Estimate(value, se, low, high, n, unit, "")
            if isinstance(self.result, MeasureResult) and path.startswith("budget."):
                found[path] = self.result.part(path.removeprefix("budget.")) or found[path]
            elif path.endswith("].first_order"):  # of a row of a sweep, which has no interval
                found[path] = within_one_se(value, se)
        return found

    def at(self, paths: Mapping[str, str]) -> tuple[dict[str, Estimate], dict[str, pd.Series]]:
        """Numbers that another run's may be compared with.

        Args:
            paths: Dotted paths by what is there. In them {rate} is the training rate, {own} the
                block of a batch with itself, and {moved} that of measured responses with U.

        Returns:
            Those that are there, and the influences of E's prompts on them by key, where known.
        """
        blocks, rate = getattr(self.result, "blocks", {}), self.result.step.rate_of_interest
        own, moved = (next((x for x in of if x in blocks), "") for of in (OWN, MOVED))
        places = {"own": own, "moved": moved, "rate": f"{rate or math.nan:g}"}
        known = {name: path.format(**places) for name, path in paths.items()}
        numbers = {n: self.estimates[path] for n, path in known.items() if path in self.estimates}
        numbers = {name: e for name, e in numbers.items() if not math.isnan(e.value)}
        table = self.result.tables.get("influences")
        if table is None or table["key"].isna().any():
            return numbers, {}
        rows = {str(q): of.set_index("key")["influence"] for q, of in table.groupby("quantity")}
        return numbers, {name: rows[path] for name, path in known.items() if path in rows}

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

    @property
    def name(self) -> str:
        """Of the run folder."""
        return self.folder.resolve().name

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
    metrics = read_metrics(folder, missing)
    evaluated = find_evaluations(folder, evaluations, missing)
    focus = _focus(measurements, checkpoint, folder)
    if focus is None and not len(metrics) and not evaluated:
        if missing:
            raise ValueError(f"{folder} holds nothing that can be reported: {' '.join(missing)}")
        raise ValueError(
            f"{folder} holds no training log, measurement or evaluation: make one first, for "
            f"example with isentrope measure CONFIG --out {folder}."
        )
    missing += rollout_faults(RunFiles(folder))
    for kind, absent in KINDS.items():
        names = [one.name for one in measurements if type(one.result) is kind]
        if not names:
            missing.append(f"{absent}: run isentrope {kind.verb}.")
        elif focus not in names:
            on = f"{', '.join(names)}, and not on {focus}, which is shown here"
            missing.append(f"{kind.verb} was run on {on}.")
    if not len(metrics) and not (folder / "logs" / "metrics.jsonl").exists():
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


def _focus(measurements: list[Measurement[Any]], asked: str | None, folder: Path) -> str | None:
    """The checkpoint asked for; else the last of those with the most results, no repeat."""
    names = [one.name for one in measurements]
    if asked is not None and asked not in names:
        every = ", ".join(dict.fromkeys(names)) or "none"
        raise ValueError(f"{folder} has no measurement of {asked!r}; it has {every}.")
    if asked is not None or not names:
        return asked
    return max(names, key=lambda n: (names.count(n), step_within(n) or 0, "_repeat_" not in n, n))
