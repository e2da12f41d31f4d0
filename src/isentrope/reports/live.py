"""The page of runs that may still be training: built anew when their files have changed.

A page is built at most a third of the time, and only while somebody looks at it. Nothing is
written. What a reader has seen stays: where a file that was read before cannot be read any more, or
the page cannot be built, the last page is shown, and a sentence says why.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from isentrope.reports.page import RunColumn, render_page, write_page
from isentrope.reports.read_run import NothingToReportError, read_run
from isentrope.reports.report import draw_column, run_labels
from isentrope.run.places import places_of_evaluations

REST = 2.0
"""Between two builds, in durations of the last one."""

SHORTEST_REST = 1.0
"""Seconds between two looks at the files."""

UNWATCHED = 30.0
"""Seconds after the last request at which nobody looks any more."""

NOT_READ = ("tensorboard", "report", "report.html", ".lock")
"""Names in a run folder that the page has nothing of."""

FILLS = "This page fills as soon as there is."

FileState = tuple[str, int, int]
"""Path, time of the last change in nanoseconds, and size."""


@dataclass(frozen=True)
class ShownPage:
    """A page as it is served.

    Attributes:
        body: HTML.
        version: Another one for every page.
        built: When, in words.
        says: A sentence on its age, and on what could not be shown.
        reported: Labels of the runs that it has something of.
        unreadable: Sentences on files that could not be read when it was built.
    """

    body: bytes
    version: str
    built: str
    says: str
    reported: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()


class LivePage:
    """The page of runs, and what is needed to build it anew.

    Attributes:
        shown: The page that is served now.
        seen: When it was last asked for, on the monotonic clock.
    """

    def __init__(
        self,
        runs: Sequence[str],
        *,
        checkpoint: str | None = None,
        evaluations: Sequence[str] = (),
    ) -> None:
        self._runs = dict(zip(run_labels(len(runs)), map(Path, runs), strict=True))
        self._checkpoint = checkpoint
        self._evaluations = evaluations
        self._files: list[FileState] | None = None
        self._next = 0.0
        self.seen = time.monotonic()
        self.shown = self._waiting(["The page is being built, which takes some seconds."])

    def refresh(self) -> None:
        """Build the page if files have changed, somebody looks, and there was a rest."""
        start = time.monotonic()
        if start < self._next or start - self.seen > UNWATCHED:
            return
        files = sorted(self._file_states())
        if files != self._files:
            self._files = files
            self._build()
        duration = time.monotonic() - start
        self._next = start + duration + max(SHORTEST_REST, REST * duration)

    def _build(self) -> None:
        """Show the new state, or keep the page and say why."""
        before = self.shown
        try:
            page, empty = self._draw()
        except Exception as error:  # whatever is wrong in a folder, the server goes on
            lost = [" ".join(str(error).split()) or type(error).__name__]
            page = self._waiting([*lost, FILLS])
        else:
            lost = [sentence for label, sentence in empty.items() if label in before.reported]
            lost += sorted(page.unreadable - before.unreadable)
        if before.reported and lost:
            page = replace(before, says=f"State of {before.built}, kept because {' '.join(lost)}")
        self.shown = page

    def _draw(self) -> tuple[ShownPage, dict[str, str]]:
        """The page of the runs that have something, and by label what is said of the others."""
        columns = list[RunColumn]()
        empty = dict[str, str]()
        evaluations = self._evaluations  # of the first run
        for label, run in self._runs.items():
            try:
                reading = read_run(run, checkpoint=self._checkpoint, evaluations=evaluations)
                columns.append(draw_column(label, reading))
            except NothingToReportError as error:
                empty[label] = str(error)
            evaluations = ()
        if not columns:
            return self._waiting([*empty.values(), FILLS]), empty
        for column in columns:
            column.reading.missing.extend(empty.values())
        version = str(time.time_ns())
        body = write_page(columns, None, version).encode()
        gaps = [column.reading.missing for column in columns]
        built = f"{datetime.now():%H:%M:%S}"
        page = ShownPage(
            body,
            version,
            built,
            f"State of {built}; the page follows the run.",
            frozenset(column.label for column in columns),
            frozenset(sentence for gap in gaps for sentence in gap.unreadable),
        )
        return page, empty

    def _waiting(self, sentences: list[str]) -> ShownPage:
        """A page without anything but sentences."""
        version = str(time.time_ns())
        runs = [f"{label} {run}".strip() for label, run in self._runs.items()]
        body = render_page("waiting.html.j2", version, runs=runs, sentences=sentences)
        return ShownPage(body.encode(), version, f"{datetime.now():%H:%M:%S}", "")

    def _file_states(self) -> Iterator[FileState]:
        """Every file that may be read, as it is now."""
        folders = {
            folder.resolve() for run in self._runs.values() for folder in places_of_evaluations(run)
        }
        folders |= {Path(folder).resolve() for folder in self._evaluations}
        folders |= {run.resolve() for run in self._runs.values()}
        for folder in folders:
            for parent, directories, names in os.walk(folder):  # what is removed meanwhile is none
                directories[:] = [name for name in directories if name not in NOT_READ]
                for name in {*directories, *names}.difference(NOT_READ):
                    path = os.path.join(parent, name)
                    try:
                        state = os.stat(path)
                    except OSError:
                        continue
                    yield path, state.st_mtime_ns, state.st_size
