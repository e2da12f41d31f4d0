"""Where every number of the report comes from: commands, batches, precision, versions, seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from isentrope.reports.panel import Panel, Source, markup
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import number, records
from isentrope.results.result import Result


def provenance(reading: Reading) -> Iterator[Panel]:
    """One row per file that was read, with the command that makes it again."""
    measured = [m for of in reading.measurements.values() for m in of.values()]
    rows = [(m.result.verb, m.name, _how(m.result), m.source()) for m in measured]
    rows += [("evaluate", e.folder.name, "", e.source()) for e in reading.evaluations]
    if reading.metrics is not None:
        steps = f"{len(reading.metrics)} steps"
        rows.insert(0, ("train", steps, "", reading.training_source()))
    data = pd.DataFrame(
        [(*row, made.seeds, made.command, made.versions) for *row, made in rows],
        columns=["verb", "of", "how", "seeds", "command", "versions"],
    )
    versions = data["versions"].unique()
    several = f"The parts were made with {len(versions)} different sets of versions: "
    yield Panel(
        "provenance",
        "Commands, seeds and versions",
        f"{several if len(versions) > 1 else 'Everything was made with '}{'; '.join(versions)}.",
        Source(f"isentrope report {reading.folder}", (str(reading.folder),)),
        data,
        body=markup("provenance", records(data)),
    )


def _how(result: Result) -> str:
    """Batches, precision and time."""
    batches, dtype = result.batches, result.policy.precision["measuring"].runtime_dtype
    seconds = number(result.timing.get("total"))
    return f"E {batches.B_E}, U {batches.B_U} × {batches.G}, {dtype}, {seconds} s"
