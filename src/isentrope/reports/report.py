"""`isentrope report RUN [OTHER]`: what a run's results say, as one page and its figures as files.

<run>/report.html                 one run
<run>/report/*.svg *.png *.csv    its figures, and their data
<run>/report_and_<other>.html     two runs side by side; files in report_and_<other>/
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isentrope.reports.page import PageSection, RunColumn, write_page
from isentrope.reports.panel import Panel
from isentrope.reports.panels import attribution, change, checks, curves, kernel, plane
from isentrope.reports.read_run import Reading, as_far_as_readable, read_run
from isentrope.reports.verdict import verdict
from isentrope.results.results import AuditResult, KernelResult
from isentrope.run.lock import one_writer
from isentrope.system.files import write_bytes
from isentrope.system.outputs import require_writable

DrawPanels = Callable[[Reading], Iterator[Panel]]
"""Draws what the results of a run allow; nothing where they are not there."""

SECTIONS: tuple[tuple[str, str, str, tuple[DrawPanels, ...]], ...] = (
    (
        "change",
        "How far does a step move entropy?",
        "Entropy after one step at learning rate η, less entropy before it. Bars and bands are "
        "intervals, of 95 % unless estimator.confidence or a caption says otherwise.",
        (change.delta_h,),
    ),
    (
        "budget",
        "What is the change made of?",
        "Momentum and decay were decided before this batch was drawn; the gradient is its part.",
        (change.waterfall, attribution.shares),
    ),
    (
        "tokens",
        "Which tokens did it?",
        "First-order influence of every token, per unit of η.",
        (attribution.token_map, attribution.class_panels),
    ),
    (
        "plane",
        "What was earned for it?",
        "Entropy is what exploration lives on; reward is what it buys.",
        (
            plane.run_price,
            plane.step_price,
            plane.trade_off,
            plane.along_training,
            plane.within_step,
        ),
    ),
    (
        KernelResult.verb,
        "How do responses move each other?",
        "The Fisher kernel: how far a step on one response moves the probability of another.",
        (kernel.moved_panels, kernel.own_panels),
    ),
    (
        AuditResult.verb,
        "Would a proxy have seen it?",
        "Published shortcuts, compared with the measured influence.",
        (attribution.audit_panels,),
    ),
    (
        "training",
        "How did training go?",
        "",
        (curves.training_panels, curves.passes),
    ),
    (
        "control",
        "What did the control do?",
        "Entropy wanted and attained, what was changed for it, and the time it took.",
        (curves.control_panels,),
    ),
    ("checks", "Is the instrument sound?", "", (checks.checks_panel,)),
    (
        "study",
        "How does it change along training?",
        "The same measurements at every checkpoint.",
        (curves.study_panels,),
    ),
    ("provenance", "Where do the numbers come from?", "", (checks.provenance,)),
)
"""Key, heading, lead and panels, in the order of the page."""


@dataclass(frozen=True)
class WrittenReport:
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
    out: str | Path | None = None,
) -> WrittenReport:
    """Write the report of a run, or of two side by side.

    Args:
        run: The run folder.
        other: Another run folder to stand beside it.
        checkpoint: The one to show in full; None for the last that was measured.
        evaluations: Folders of evaluations of the run, beside those that name it.
        out: Folder of the page, such as for a run that cannot be written into; None for the run's.

    Returns:
        The files.
    """
    readings = [read_run(run, checkpoint=checkpoint, evaluations=evaluations)]
    name = "report"
    labels = [""]
    if other is not None:
        readings.append(read_run(other, checkpoint=checkpoint))
        name = f"report_and_{readings[1].name}"
        labels = ["A", "B"]
    columns = list[RunColumn]()
    for label, reading in zip(labels, readings, strict=True):
        sections = [
            PageSection(key, title, lead, as_far_as_readable(reading, title, *draws))
            for key, title, lead, draws in SECTIONS
        ]
        columns.append(RunColumn(label, reading, verdict(reading), sections))
    place = readings[0].folder if out is None else Path(out)
    folder = place / name
    page = place / f"{name}.html"
    require_writable(place, "--out")
    with one_writer(place):
        write_bytes(page, write_page(columns, folder).encode())
    claims = [c.of(claim.text) for c in columns for claim in c.claims]
    missing = [c.of(sentence) for c in columns for sentence in c.reading.missing]
    return WrittenReport(page, folder, claims, missing)
