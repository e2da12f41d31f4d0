"""`isentrope report RUN [OTHER]`: what a run's results say, as one page and its figures as files.

<run>/report.html                 one run
<run>/report/*.svg *.png *.csv    its figures, and their data
<run>/report_and_<other>.html     two runs side by side; files in report_and_<other>/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isentrope._lazy import load
from isentrope.reports.page import Column, identifier, render
from isentrope.reports.panel import Panel, Section
from isentrope.reports.panels import budget, plane, training
from isentrope.reports.panels.change import delta_h_panels
from isentrope.reports.panels.checks import checks_panel
from isentrope.reports.panels.classes import class_panel
from isentrope.reports.panels.provenance import provenance
from isentrope.reports.panels.study import study_panels
from isentrope.reports.panels.tokens import token_map
from isentrope.reports.read_run import Reading, as_far_as_readable, read_run
from isentrope.reports.svg import png_file, svg_file
from isentrope.reports.verdict import verdict
from isentrope.results.verbs import AUDIT, KERNEL, Verb
from isentrope.runs.one_writer import one_writer
from isentrope.system.file_contents import csv
from isentrope.system.files import write_bytes

Draw = Callable[[Reading], Iterator[Panel]]
"""Draws what the results of a run allow; nothing where they are not there."""

Drawn = tuple[str, str, str, tuple[Draw, ...]]
"""Key, heading, lead and panels of a section."""


def of_verb(verb: Verb) -> Drawn:
    """The section that is of one verb alone."""
    assert verb.shown is not None
    return verb.name, verb.shown.heading, verb.shown.lead, tuple(map(load, verb.shown.panels))


SECTIONS: tuple[Drawn, ...] = (
    (
        "change",
        "How far does a step move entropy?",
        "Entropy after one step at learning rate η, less entropy before it. Bars and bands are "
        "95 % intervals unless a caption says otherwise.",
        (delta_h_panels,),
    ),
    (
        "budget",
        "What is the change made of?",
        "Momentum and decay were decided before this batch was drawn; the gradient is its part.",
        (budget.waterfall, budget.shares, budget.past_updates),
    ),
    (
        "tokens",
        "Which tokens did it?",
        "First-order influence of every token, per unit of η.",
        (token_map, class_panel),
    ),
    (
        "plane",
        "What was earned for it?",
        "Entropy is what exploration lives on; reward is what it buys.",
        (plane.trade_off, plane.along_training, plane.within_step),
    ),
    of_verb(KERNEL),
    of_verb(AUDIT),
    (
        "training",
        "How did training go?",
        "",
        (training.training_panels, training.passes),
    ),
    (
        "control",
        "What did the control do?",
        "Entropy wanted and attained, what was changed for it, and the time it took.",
        (training.control_panels,),
    ),
    ("checks", "Is the instrument sound?", "", (checks_panel,)),
    (
        "study",
        "How does it change along training?",
        "The same measurements at every checkpoint.",
        (study_panels,),
    ),
    ("provenance", "Where do the numbers come from?", "", (provenance,)),
)
"""In the order of the page."""


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
    name, labels = "report", ("",)
    if other is not None:
        readings.append(read_run(other, checkpoint=checkpoint))
        name, labels = f"report_and_{readings[1].folder.resolve().name}", ("A", "B")
    columns = [_column(*pair) for pair in zip(labels, readings, strict=True)]
    folder, page = readings[0].folder / name, readings[0].folder / f"{name}.html"
    drawn: dict[str, bytes] = {}
    with one_writer(readings[0].folder):
        for column in columns:
            for panel in column.panels.values():
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
    about = []
    if reading.focus is not None:
        names = {name for of in reading.measurements.values() for name in of}
        more = f", the last of {len(names)} measured" if len(names) > 1 else ""
        about.append(f"{reading.focus}{more}")
    if reading.metrics is not None:
        about.append(f"{len(reading.metrics)} training steps")
    data = reading.config.get("data") or reading.config.get("batch_config") or {}
    if data.get("dataset_name"):
        about.append(str(data["dataset_name"]))
    return Column(
        label=label,
        name=reading.folder.resolve().name,
        about=" · ".join(about),
        claims=verdict(reading),
        missing=reading.missing,
        sections=list(sections_of(reading)),
    )


def sections_of(reading: Reading) -> Iterator[Section]:
    """Every section that the run's results allow, in the order of the page."""
    for key, title, lead, draws in SECTIONS:
        panels = as_far_as_readable(reading, title, *draws)
        if panels:
            yield Section(key, title, tuple(panels), lead)
