"""Where every number of the report comes from: commands, batches, precision, versions, seeds."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from isentrope.reports.panel import Panel, Source
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import Row, records
from isentrope.reports.sentences import number


def provenance_panel(reading: Reading) -> Panel:
    """One row per file that was read, with the command that makes it again."""
    rows = [_of_measurement(m) for of in reading.measurements.values() for m in of.values()]
    if reading.metrics is not None:
        source = reading.training_source()
        rows.insert(0, _row("train", f"{len(reading.metrics)} steps", "", source))
    for evaluation in reading.evaluations:
        rows.append(_row("evaluate", evaluation.folder.name, "", evaluation.source()))
    data = pd.DataFrame(rows)
    versions = data["versions"].unique()
    if len(versions) == 1:
        caption = f"Everything was made with {versions[0]}."
    else:
        caption = f"The parts were made with {len(versions)} different sets of versions: "
        caption += "; ".join(versions) + "."
    return Panel(
        "provenance",
        "Commands, seeds and versions",
        caption,
        Source(f"isentrope report {reading.folder}", (str(reading.folder),)),
        data,
        body=_table(data),
        wide=True,
    )


def _of_measurement(measurement: Measurement[Any]) -> Row:
    result = measurement.result
    batches, seconds = result.batches, result.timing.get("total")
    how = [f"E {batches.B_E}, U {batches.B_U} × {batches.G}"]
    how += [result.policy.precision["measuring"].runtime_dtype]
    how += [f"{number(seconds)} s"] if seconds is not None else []
    return _row(measurement.verb, measurement.name, ", ".join(how), measurement.source())


def _row(verb: str, of: str, how: str, source: Source) -> Row:
    return {
        "verb": verb,
        "of": of,
        "how": how,
        "seeds": source.seeds,
        "command": source.command,
        "versions": source.versions,
    }


def _table(data: pd.DataFrame) -> Markup:
    rows = Markup("").join(
        Markup(
            '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td>'
            "<td><code>{}</code></td></tr>"
        ).format(row["verb"], row["of"], row["how"], row["seeds"], row["command"])
        for row in records(data)
    )
    heads = Markup("").join(
        Markup('<th scope="col">{}</th>').format(name)
        for name in ("verb", "of", "batches, precision, time", "seeds", "again with")
    )
    return Markup(
        '<div class="scroll"><table class="stack"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>"
    ).format(heads, rows)
