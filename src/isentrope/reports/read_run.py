"""What a run folder holds, and what it lacks, before anything is drawn.

    <run>/measurements/<verb>_<name>/results.json, *.parquet      `SavedResult`
    <run>/logs/metrics.jsonl, timing.jsonl                        `metrics`
    <run>/evaluation, eval_runs/*: step_N/metrics.json            `RunEvaluation`

A file that cannot be read, or a measurement that was begun and not finished, is no error: the rest
is reported, and a sentence says what is not there.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from isentrope.checkpoint.files import step_within
from isentrope.reports.evaluations import (
    Gaps,
    RunEvaluation,
    Sections,
    again,
    find_evaluations,
    provenance_of,
    read_metrics,
    read_sections,
)
from isentrope.reports.panel import Source
from isentrope.reports.saved_result import AnyResult, SavedResult
from isentrope.results.result import KINDS_OF_RESULTS, Result
from isentrope.results.verbs import TRY, VERBS
from isentrope.run.origin import require_of_run
from isentrope.run.places import nothing_to_report, require_name
from isentrope.system.errors import IsentropeError
from isentrope.system.reading import reading, require_directory
from isentrope.training.rollout_digests import rollout_faults
from isentrope.training.run_files import RunFiles

REPORTED_KINDS: dict[type[Result], str] = {
    kind: kind.absent for verb in VERBS if (kind := KINDS_OF_RESULTS[verb]).absent
}
"""The results that are reported, and what is said where there is none."""

Drawn = TypeVar("Drawn")


class NothingToReportError(ValueError):
    """A run folder that has neither a log, nor a measurement, nor an evaluation."""


class NotMeasuredError(IsentropeError):
    """What a panel or a sentence is about was not measured at the checkpoint in focus."""


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
    measurements: list[SavedResult[Any]]
    metrics: pd.DataFrame
    evaluations: list[RunEvaluation]
    focus: str | None
    missing: Gaps = field(default_factory=Gaps)

    @property
    def name(self) -> str:
        """Of the run folder."""
        return self.folder.resolve().name

    def all_of(self, kind: type[AnyResult]) -> list[SavedResult[AnyResult]]:
        """What a verb found, in the order of steps."""
        return [saved for saved in self.measurements if type(saved.result) is kind]

    def in_focus(self, kind: type[AnyResult]) -> SavedResult[AnyResult] | None:
        """What a verb found at the checkpoint in focus; None if there is nothing."""
        return next((saved for saved in self.all_of(kind) if saved.name == self.focus), None)

    def shown(self, kind: type[AnyResult]) -> SavedResult[AnyResult]:
        """What a verb found at the checkpoint in focus.

        Returns:
            The measurement.

        Raises:
            NotMeasuredError: If there is none.
        """
        saved = self.in_focus(kind)
        if saved is None:
            raise NotMeasuredError(f"{kind.verb} was not run on {self.focus}.")
        return saved

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
    run: Reading, subject: str, *draws: Callable[[Reading], Iterable[Drawn]]
) -> list[Drawn]:
    """What each draws of the results.

    Args:
        run: What was read of it.
        subject: What is drawn, for the sentence on what cannot be read.
        *draws: Functions; one whose results were not measured draws nothing.

    Returns:
        Everything that was drawn.
    """
    drawn = list[Drawn]()
    for draw in draws:
        try:
            with reading(run.folder):
                drawn += draw(run)
        except NotMeasuredError:
            continue
        except (IsentropeError, FileNotFoundError) as error:
            run.missing.add_unreadable(f"{subject}: left out, because {error}")
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
        NothingToReportError: If it holds nothing to report.
        ValueError: If it does not hold the checkpoint asked for.
    """
    folder = Path(folder)
    require_directory(folder, "give the directory of a run")
    missing = Gaps()
    measurements = _measurements(folder, missing)
    metrics = read_metrics(folder, missing)
    evaluated = find_evaluations(folder, evaluations, missing)
    focus = _focus(measurements, checkpoint, folder)
    if focus is None and not len(metrics) and not evaluated:
        if missing:
            raise NothingToReportError(
                f"{folder} holds nothing that can be reported: {' '.join(missing)}"
            )
        raise NothingToReportError(nothing_to_report(folder))
    files = RunFiles(folder)
    missing += rollout_faults(files)
    place = files.latest() if focus is None else folder / "training_state" / focus
    measured = str(place) if place is not None and place.is_dir() else "CHECKPOINT"
    for kind, absent in REPORTED_KINDS.items():
        names = [saved.name for saved in measurements if type(saved.result) is kind]
        if not names:
            command = shlex.join(["isentrope", kind.verb, measured, "--out", str(folder)])
            missing.append(f"{absent}: run {command}.")
        elif focus not in names:
            on = f"{', '.join(names)}, and not on {focus}, which is shown here"
            missing.append(f"{kind.verb} was run on {on}.")
    if not len(metrics) and not (folder / "logs" / "metrics.jsonl").exists():
        missing.append("There is no training log: the run was not made by isentrope train.")
    if not evaluated:
        missing.append("There is no evaluation of this run: run isentrope evaluate.")
    sections = read_sections(folder, missing)
    return Reading(folder, sections, measurements, metrics, evaluated, focus, missing)


def _measurements(folder: Path, missing: Gaps) -> list[SavedResult[Any]]:
    kinds = {kind.verb: kind for kind in REPORTED_KINDS}
    kinds[TRY.name] = KINDS_OF_RESULTS[TRY.name]  # drawn where there is one, and not missed
    measurements: list[SavedResult[Any]] = []
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
            missing.add_unreadable(f"{error} {verb} is left out.")
            continue
        measurements.append(SavedResult(name, path, result))
    return sorted(measurements, key=lambda saved: (saved.step or 0, saved.name))


def _focus(
    measurements: list[SavedResult[Any]], checkpoint: str | None, folder: Path
) -> str | None:
    """The checkpoint that is named; else the last of those with the most results, no repeat."""
    names = [saved.name for saved in measurements]
    if checkpoint is not None:
        require_name(folder, checkpoint, names)
    if checkpoint is not None or not names:
        return checkpoint
    return max(names, key=lambda n: (names.count(n), step_within(n) or 0, "_repeat_" not in n, n))
