"""`isentrope report RUN …`: what the results of runs say, as one page and its figures as files.

<run>/report.html                 one run
<run>/report/*.svg *.png *.csv    its figures, and their data
<run>/report_and_<other>.html     runs side by side; files in report_and_<other>/
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

from isentrope.reports.page import PageSection, RunColumn, write_page
from isentrope.reports.panel import Panel
from isentrope.reports.panels import attribution, change, checks, curves, frontier, kernel, plane
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
            frontier.step_frontier,
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


LONGEST_NAME = 200
"""Bytes in the name of a page; file systems allow 255, and a suffix follows."""


@dataclass(frozen=True)
class WrittenReport:
    """What was written.

    Attributes:
        page: The HTML file.
        folder: Figures and data.
        runs: Sentences on which run is which; none where there is one.
        claims: The sentences of the verdict, run by run.
        missing: What was not there.
    """

    page: Path
    folder: Path
    runs: list[str]
    claims: list[str]
    missing: list[str]


def write_report(
    *runs: str | Path,
    checkpoint: str | None = None,
    evaluations: Sequence[str | Path] = (),
    out: str | Path | None = None,
) -> WrittenReport:
    """Write the report of a run, or of several side by side.

    Args:
        *runs: The run folders. The others are compared with the first.
        checkpoint: The one to show in full; None for the last that was measured.
        evaluations: Folders of evaluations of the first run, beside those that name it.
        out: Folder of the page, such as for a run that cannot be written into; None for that of
            the first run.

    Returns:
        The files.
    """
    readings = read_runs(runs, checkpoint=checkpoint, evaluations=evaluations)
    columns = [draw_column(label, reading) for label, reading in readings.items()]
    first, *others = readings.values()
    place = first.folder if out is None else Path(out)
    name = "_and_".join(["report", *(reading.name for reading in others)])
    if len(name.encode()) > LONGEST_NAME:
        name = f"report_and_{len(others)}_others"
    folder = place / name
    page = place / f"{name}.html"
    require_writable(place, "--out")
    with one_writer(place):
        write_bytes(page, write_page(columns, folder).encode())
    identities = [f"{c.label} is {c.reading.folder}." for c in columns if c.label]
    claims = [c.of(claim.text) for c in columns for claim in c.claims]
    missing = [c.of(sentence) for c in columns for sentence in c.reading.missing]
    return WrittenReport(page, folder, identities, claims, missing)


def read_runs(
    runs: Sequence[str | Path],
    *,
    checkpoint: str | None = None,
    evaluations: Sequence[str | Path] = (),
) -> dict[str, Reading]:
    """Runs by their labels on the page; "" is the label of a run alone.

    Args:
        runs: The run folders.
        checkpoint: The one to show in full.
        evaluations: Of the first run.

    Returns:
        What each holds.

    Raises:
        ValueError: If there is no run, or more than the page has labels for.
    """
    labels = run_labels(len(runs))
    by_run = [evaluations, *[()] * (len(runs) - 1)]
    return {
        label: read_run(run, checkpoint=checkpoint, evaluations=its_own)
        for label, run, its_own in zip(labels, runs, by_run, strict=True)
    }


def run_labels(count: int) -> Sequence[str]:
    """Letters of so many runs; "" for one.

    Args:
        count: How many runs.

    Returns:
        The labels.

    Raises:
        ValueError: If there are no runs, or more than letters.
    """
    if not 1 <= count <= len(ascii_uppercase):
        raise ValueError(f"Give 1 to {len(ascii_uppercase)} run folders, not {count}.")
    return ascii_uppercase[:count] if count > 1 else [""]


def draw_column(label: str, reading: Reading) -> RunColumn:
    """The verdict and all panels of a run."""
    sections = [
        PageSection(key, title, lead, as_far_as_readable(reading, title, *draws))
        for key, title, lead, draws in SECTIONS
    ]
    return RunColumn(label, reading, verdict(reading), sections)
