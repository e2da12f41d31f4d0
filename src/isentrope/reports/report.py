"""`isentrope report RUN [OTHER]`: what a run's results say, as one page and its figures as files.

<run>/report.html                 one run
<run>/report/*.svg *.png *.csv    its figures, and their data
<run>/report_and_<other>.html     two runs side by side; files in report_and_<other>/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from isentrope.reports.page import Column, identifier, render
from isentrope.reports.panel import Panel, Section
from isentrope.reports.panels.audit import audit_panels
from isentrope.reports.panels.budget import budget_panels
from isentrope.reports.panels.change import delta_h_panels
from isentrope.reports.panels.checks import checks_panel
from isentrope.reports.panels.classes import class_panels
from isentrope.reports.panels.control import control_panels
from isentrope.reports.panels.kernel import kernel_panels
from isentrope.reports.panels.kernel_block import block_panels
from isentrope.reports.panels.plane import plane_panels
from isentrope.reports.panels.provenance import provenance_panel
from isentrope.reports.panels.study import study_panels
from isentrope.reports.panels.tokens import token_panels
from isentrope.reports.panels.training import curve_panels
from isentrope.reports.read_run import Measurement, Reading, as_far_as_readable, read_run
from isentrope.reports.svg import png_file, svg_file
from isentrope.reports.verdict import verdict
from isentrope.results.result import Result
from isentrope.results.results import (
    AuditResult,
    InfluenceResult,
    KernelResult,
    MeasureResult,
)
from isentrope.runs.one_writer import one_writer
from isentrope.system.file_contents import csv
from isentrope.system.files import write_bytes

R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        page: The HTML file.
        folder: Figures and data.
        claims: The sentences of the verdict, run by run.
        missing: What was not there.
    """

    page: Path
    folder: Path
    claims: list[str]
    missing: list[str]


def write_report(
    run: str | Path,
    other: str | Path | None = None,
    *,
    checkpoint: str | None = None,
    evaluations: Sequence[str | Path] = (),
) -> Report:
    """Write the report of a run, or of two side by side.

    Args:
        run: The run folder.
        other: Another run folder to stand beside it.
        checkpoint: The one to show in full; None for the last that was measured.
        evaluations: Folders of evaluations of the run, beside those that name it.

    Returns:
        The files.
    """
    readings = [read_run(run, checkpoint=checkpoint, evaluations=evaluations)]
    name = "report"
    if other is not None:
        readings.append(read_run(other, checkpoint=checkpoint))
        name = f"report_and_{readings[1].folder.resolve().name}"
    labels = ("A", "B") if other is not None else ("",)
    columns = [_column(*pair) for pair in zip(labels, readings, strict=True)]
    folder, page = readings[0].folder / name, readings[0].folder / f"{name}.html"
    drawn: dict[str, bytes] = {}
    with one_writer(readings[0].folder):
        for column in columns:
            for section in column.sections:
                for panel in section.panels:
                    drawn |= _save(panel, folder, identifier(column, panel))
        write_bytes(page, render(columns, name, drawn).encode())
    claims = [_labelled(column, claim.text) for column in columns for claim in column.claims]
    missing = [_labelled(column, sentence) for column in columns for sentence in column.missing]
    return Report(page, folder, claims, missing)


def _labelled(column: Column, sentence: str) -> str:
    return f"{column.label}: {sentence}" if column.label else sentence


def _save(panel: Panel, folder: Path, stem: str) -> dict[str, bytes]:
    """Write the files of a panel; returns its figure by its name, if it has one."""
    write_bytes(folder / f"{stem}.csv", csv(panel.data))
    if panel.figure is None:
        return {}
    svg = svg_file(panel.figure, stem)
    write_bytes(folder / f"{stem}.svg", svg)
    write_bytes(folder / f"{stem}.png", png_file(panel.figure))
    return {stem: svg}


def _column(label: str, reading: Reading) -> Column:
    return Column(
        label=label,
        name=reading.folder.resolve().name,
        about=_about(reading),
        claims=verdict(reading),
        missing=reading.missing,
        sections=list(sections_of(reading)),
    )


def _about(reading: Reading) -> str:
    parts = []
    if reading.focus is not None:
        names = dict.fromkeys(name for of in reading.measurements.values() for name in of)
        more = f", the last of {len(names)} measured" if len(names) > 1 else ""
        parts.append(f"{reading.focus}{more}")
    if reading.metrics is not None:
        parts.append(f"{len(reading.metrics)} training steps")
    data = reading.config.get("data") or reading.config.get("batch_config") or {}
    if data.get("dataset_name"):
        parts.append(str(data["dataset_name"]))
    return " · ".join(parts)


def sections_of(reading: Reading) -> Iterator[Section]:
    """Every section that the run's results allow, in the order of the page."""
    panels: dict[str, Callable[[], list[Panel]]] = {
        "change": lambda: _of(reading.shown(MeasureResult), delta_h_panels),
        "budget": lambda: budget_panels(reading),
        "tokens": lambda: _token_panels(reading),
        "plane": lambda: plane_panels(reading),
        "kernel": lambda: [
            *_of(reading.shown(KernelResult), block_panels),
            *_of(reading.shown(KernelResult), kernel_panels),
        ],
        "audit": lambda: _of(reading.shown(AuditResult), audit_panels),
        "training": lambda: curve_panels(reading),
        "control": lambda: control_panels(reading),
        "checks": lambda: [x for x in (checks_panel(reading),) if x is not None],
        "study": lambda: study_panels(reading),
        "provenance": lambda: [provenance_panel(reading)],
    }
    for key, (title, lead) in HEADINGS.items():
        if drawn := as_far_as_readable(reading, title, panels[key]):
            yield Section(key, title, tuple(drawn), lead)


def _token_panels(reading: Reading) -> list[Panel]:
    """The map, and the classes by influence; by the audit where there is no influence."""
    influence, audit = reading.shown(InfluenceResult), reading.shown(AuditResult)
    classes = _of(influence, class_panels) or _of(audit, class_panels)
    return _of(influence, token_panels) + classes


def _of(
    measurement: Measurement[R] | None, draw: Callable[[Measurement[R]], list[Panel]]
) -> list[Panel]:
    return [] if measurement is None else draw(measurement)


HEADINGS = {
    "change": (
        "How far does a step move entropy?",
        "Entropy after one step at learning rate η, less entropy before it. Bars and bands are "
        "95 % intervals unless a caption says otherwise.",
    ),
    "budget": (
        "What is the change made of?",
        "Momentum and decay were decided before this batch was drawn; the gradient is its part.",
    ),
    "tokens": ("Which tokens did it?", "First-order influence of every token, per unit of η."),
    "plane": (
        "What was earned for it?",
        "Entropy is what exploration lives on; reward is what it buys.",
    ),
    "kernel": (
        "How do responses move each other?",
        "The Fisher kernel: how far a step on one response moves the probability of another.",
    ),
    "audit": (
        "Would a proxy have seen it?",
        "Published shortcuts, compared with the measured influence.",
    ),
    "training": ("How did training go?", ""),
    "control": (
        "What did the control do?",
        "Entropy wanted and attained, what was changed for it, and the time it took.",
    ),
    "checks": ("Is the instrument sound?", ""),
    "study": ("How does it change along training?", "The same measurements at every checkpoint."),
    "provenance": ("Where do the numbers come from?", ""),
}
