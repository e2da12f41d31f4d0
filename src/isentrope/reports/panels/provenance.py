"""Where every number of the report comes from: commands, batches, precision, versions, seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from isentrope.reports.panel import Panel, Source, markup
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import number, records


def provenance(reading: Reading) -> Iterator[Panel]:
    """One row per file that was read, with the command that makes it again."""
    rows = []
    if reading.metrics is not None:
        steps = f"{len(reading.metrics)} steps"
        rows.append(("train", steps, "", reading.training_source()))
    for measurement in (m for of in reading.measurements.values() for m in of.values()):
        result = measurement.result
        batches, seconds = result.batches, result.timing.get("total")
        how = [f"E {batches.B_E}, U {batches.B_U} × {batches.G}"]
        how += [result.policy.precision["measuring"].runtime_dtype]
        how += [f"{number(seconds)} s"] if seconds is not None else []
        rows.append((result.verb, measurement.name, ", ".join(how), measurement.source()))
    for evaluation in reading.evaluations:
        rows.append(("evaluate", evaluation.folder.name, "", evaluation.source()))
    data = pd.DataFrame(
        [
            {"verb": verb, "of": of, "how": how}
            | {"seeds": source.seeds, "command": source.command, "versions": source.versions}
            for verb, of, how, source in rows
        ]
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
        wide=True,
    )
