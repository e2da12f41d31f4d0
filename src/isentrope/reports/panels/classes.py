"""Classes of tokens: what the likely and the unlikely, the rewarded and the punished cost.

Bars are δH of a class per unit η, with intervals; numbers beside the names are shares of the
tokens that act. Whether the published criterion is the whole story is a sentence of the verdict.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from isentrope.attribution.influence.class_sums import ClassPart
from isentrope.attribution.influence.classes import Classes
from isentrope.reports.palette import INK, by_sign
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.rows import Row, columns_of, records
from isentrope.reports.sentences import has_interval, number, with_interval
from isentrope.reports.svg import canvas, named_rows, zero_line
from isentrope.results.results import AuditResult, InfluenceResult
from isentrope.system.formatting import percent


def class_panels(found: Measurement[InfluenceResult] | Measurement[AuditResult]) -> list[Panel]:
    """The classes of tokens; nothing where tokens were not attributed."""
    classes = found.result.classes.get("tokens")
    if classes is None:
        return []
    data = _table(classes)
    shares = {f"share of the fall, {k}": row.fall for k, row in classes.parts.items()}
    return [
        Panel(
            "classes",
            "Which classes of tokens cost entropy",
            _caption(classes),
            found.source(),
            data,
            _draw(data, f"δH ({classes.gradient.unit})"),
            numbers={name: share for name, share in shares.items() if has_interval(share)},
        )
    ]


def _caption(classes: Classes) -> str:
    ends = {name: number(value) for name, value in classes.thresholds.items()}
    name, row = min(classes.parts.items(), key=lambda pair: pair[1].delta_h.value)
    most = f"“{name}” moves entropy lowest, by {with_interval(row.delta_h)} {row.delta_h.unit}"
    share = f"{with_interval(row.fall)} of the fall"
    return (
        f"Of the classes, {most}, {share}. Unlikely is log π ≤ {ends['s of unlikely']}, high "
        f"entropy H ≥ {ends['H of high entropy']} nats; rewarded and punished are signs of the "
        "token's weight."
    )


def _table(classes: Classes) -> pd.DataFrame:
    total = sum(row.members for row in classes.parts.values())
    return pd.DataFrame([_row(name, row, total) for name, row in classes.parts.items()])


def _row(name: str, row: ClassPart, total: float) -> Row:
    of = {"share": row.share_h, "fall": row.fall, "delta_j": row.delta_j}
    more = {
        f"{quantity}_{key}": value
        for quantity, estimate in of.items()
        if estimate is not None
        for key, value in columns_of(estimate).items()
    }
    head = {"class": name, "tokens": row.members, "share_of_tokens": row.members / total}
    return {**head, "weight": row.weight, **columns_of(row.delta_h), **more}


def _draw(data: pd.DataFrame, label: str) -> Any:
    figure, (axes,) = canvas(90 + 30 * len(data))
    rows = records(data)
    for k, row in enumerate(rows):
        axes.barh(k, row["value"], height=0.56, color=by_sign(row["value"]))
        if row["se"] == row["se"]:
            axes.errorbar(row["value"], k, xerr=row["se"], color=INK.light, capsize=3, linewidth=1)
    zero_line(axes, vertical=True)
    names = [f"{row['class']} ({percent(row['share_of_tokens'])})" for row in rows]
    named_rows(axes, range(len(rows)), names, label)
    return figure
