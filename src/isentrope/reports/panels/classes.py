"""Classes of tokens: what the likely and the unlikely, the rewarded and the punished cost.

Bars are δH of a class per unit η with their intervals; numbers beside the names are shares of the
tokens that act. Whether the published criterion is the whole story is a sentence of the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from isentrope.reports.drawing import bars
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.sentences import number, with_interval
from isentrope.results.results import AuditResult, InfluenceResult
from isentrope.system.formatting import percent


def classified(
    reading: Reading,
) -> Measurement[InfluenceResult] | Measurement[AuditResult] | None:
    """The influence, or else the audit, that has classes of tokens."""
    for found in (reading.shown(InfluenceResult), reading.shown(AuditResult)):
        if found is not None and "tokens" in found.result.classes:
            return found
    return None


def class_panel(reading: Reading) -> Iterator[Panel]:
    """δH of every class, and its shares."""
    found = classified(reading)
    if found is None:
        return
    classes = found.result.classes["tokens"]
    parts, total = classes.parts, sum(part.members for part in classes.parts.values())
    rows = []
    for name, part in parts.items():
        row = {"class": name, "tokens": part.members, "share_of_tokens": part.members / total}
        row |= {"weight": part.weight, **part.delta_h.columns()}
        more = {"share": part.share_h, "fall": part.fall, "delta_j": part.delta_j}
        row |= {f"{of}_{key}": x for of, e in more.items() if e for key, x in e.columns().items()}
        rows.append(row)
    names = [f"{name} ({percent(part.members / total)})" for name, part in parts.items()]
    changes = [part.delta_h for part in parts.values()]
    ends = {name: number(value) for name, value in classes.thresholds.items()}
    name, most = min(parts.items(), key=lambda pair: pair[1].delta_h.value)
    yield Panel(
        "classes",
        "Which classes of tokens cost entropy",
        f"Of the classes, “{name}” moves entropy lowest, by {with_interval(most.delta_h)} "
        f"{most.delta_h.unit}, {with_interval(most.fall)} of the fall. Unlikely is log π ≤ "
        f"{ends['s of unlikely']}, high entropy H ≥ {ends['H of high entropy']} nats; rewarded and "
        "punished are signs of the token's weight.",
        found.source(),
        pd.DataFrame(rows),
        bars(names, changes, f"δH ({classes.gradient.unit})"),
        {f"share of the fall, {name}": part.fall for name, part in parts.items()},
    )
