"""Where the change comes from: the budget of one step as a waterfall.

    ηδH₁ = momentum + decay + gradient,     ΔH(η) = ηδH₁ + η²δH₂ + the rest

at the training rate η; and how the gradient's part splits by prompt, which is measured on other
responses: fresh ones to U's prompts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, SECOND, by_sign
from isentrope.reports.panel import Panel
from isentrope.reports.panels.past_updates import past_panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import Row, records
from isentrope.reports.sentences import has_interval, number, with_interval
from isentrope.reports.svg import canvas, grid, named_rows, zero_line
from isentrope.results.attributions import SharesRecord
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import listed, percent

SHARES = {
    "itself": "the response itself",
    "same_prompt": "same prompt",
    "other_prompt": "other prompts",
    "gradient": "together",
}


PARTS = ("momentum", "decay", "gradient", "control")


def budget_panels(reading: Reading) -> list[Panel]:
    """The waterfall, the shares by prompt, and the momentum by past update."""
    measured, influence = reading.shown(MeasureResult), reading.shown(InfluenceResult)
    panels = []
    if measured is not None and measured.result.part("total") is not None:
        panels.append(_waterfall(measured))
    elif influence is not None:
        panels.append(_waterfall_of_influence(influence))
    if influence is not None and influence.result.shares is not None:
        panels.append(_shares(influence, influence.result.shares))
    past = None if influence is None else past_panel(influence)
    return panels if past is None else [*panels, past]


def _waterfall(measured: Measurement[MeasureResult]) -> Panel:
    result = measured.result
    unit, rate = result.unit, result.rate or 1.0
    parts = {name: result.part(name) for name in (*PARTS, "total")}
    steps = [
        _step(name, part.value * rate, part.se * rate, "part")
        for name in PARTS
        if (part := parts[name]) is not None
    ]
    total = parts["total"]
    assert total is not None
    first = total.value * rate
    steps.append(_step("first order", first, total.se * rate, "first"))
    steps += _beyond_first(result, first)
    data = pd.DataFrame(steps)
    numbers = {
        f"{name} part of δH₁": part
        for name in ("momentum", "gradient")
        if (part := parts[name]) is not None
    }
    return Panel(
        "budget",
        f"From momentum to what is measured, at η = {number(rate)}",
        _caption(data, first, unit),
        measured.source(),
        data,
        _draw(data, f"ΔH ({unit})"),
        numbers=numbers,
        influences=measured.influences({f"{k} part of δH₁": f"budget.{k}" for k in PARTS}),
    )


def _beyond_first(result: MeasureResult, first: float) -> list[Row]:
    """Second order, what is left, and what was measured; nothing where they are not known."""
    row = result.at_rate()
    if row is None or math.isnan(row.second_order):
        return []
    change = result.change_at(row)
    if math.isfinite(row.residual) and row.resampled is None:
        sound = row.residual_verdict in (None, "trust")
        rest = _step("the rest", row.residual, row.residual_se if sound else None, "part")
    else:
        rest = _step("the rest", change.value - (first + row.second_order), None, "part")
    return [
        _step("second order", row.second_order, row.second_order_se, "second"),
        rest,
        _step("measured", change.value, change.se, "measured"),
    ]


def _waterfall_of_influence(influence: Measurement[InfluenceResult]) -> Panel:
    entropy = influence.result.entropy
    total = entropy.total
    parts = {"momentum": entropy.momentum, "decay": entropy.decay, "gradient": entropy.gradient}
    steps = [_step(name, part.value, part.se, "part") for name, part in parts.items()]
    steps.append(_step("first order", total.value, total.se, "first"))
    data = pd.DataFrame(steps)
    return Panel(
        "budget",
        "From momentum to the first order, per unit η",
        _caption(data, total.value, entropy.unit),
        influence.source(),
        data,
        _draw(data, entropy.unit),
    )


def _step(name: str, value: float, se: float | None, kind: str) -> Row:
    return {"name": name, "value": value, "se": se, "kind": kind}


def _caption(data: pd.DataFrame, total: float, unit: str) -> str:
    parts = data[data["kind"] == "part"].head(3)
    terms = [
        f"{row['name']} {number(row['value'])}"
        + (f" ({percent(row['value'] / total)})" if total else "")
        for _, row in parts.iterrows()
        if abs(row["value"]) > 0.0005 * abs(total)
    ]
    return f"First order {number(total)} {unit} is {listed(terms)}." if terms else "Nothing moved."


def _draw(data: pd.DataFrame, label: str) -> Any:
    """Bars from where the last one ended; totals start from zero. Whiskers are one se."""
    figure, (axes,) = canvas(300)
    rows = np.arange(len(data))
    colours = {"first": FIRST.light, "second": SECOND.light, "measured": MEASURED.light}
    level = 0.0
    for k, row in zip(rows, records(data), strict=True):
        total = row["kind"] in ("first", "measured")
        start = 0.0 if total else level
        colour = colours.get(row["kind"]) or by_sign(row["value"])
        axes.barh(k, row["value"], left=start, height=0.56, color=colour)
        level = start + row["value"]
        if row["se"]:
            axes.errorbar(level, k, xerr=row["se"], color=INK.light, capsize=3, linewidth=1.2)
        if k < rows[-1]:
            axes.plot([level, level], [k + 0.28, k + 0.72], color=MUTED.light, linewidth=0.8)
    zero_line(axes, vertical=True)
    _room_for_values(axes, data)
    named_rows(axes, rows, data["name"], label)
    return figure


def _room_for_values(axes: Any, data: pd.DataFrame) -> None:
    """The value of each bar in a column at the right, where no bar can reach it."""
    for k, value in enumerate(data["value"]):
        axes.text(
            1.02,
            k,
            number(value, 2),
            transform=axes.get_yaxis_transform(),
            va="center",
            size=11,
            color=INK.light,
        )


def _shares(influence: Measurement[InfluenceResult], shares: SharesRecord) -> Panel:
    relations: dict[str, Estimate] = {
        words: estimate
        for key, words in SHARES.items()
        if (estimate := getattr(shares, key)) is not None
    }
    data = pd.DataFrame([{"share": words, **e.to_dict()} for words, e in relations.items()])
    figure, (axes,) = canvas(90 + 44 * len(relations))
    for k, estimate in enumerate(relations.values()):
        colour = by_sign(estimate.value)
        if has_interval(estimate):
            axes.plot([estimate.ci_low, estimate.ci_high], [k, k], color=colour, linewidth=2)
        axes.plot(estimate.value, k, "o", color=colour, markersize=7)
    zero_line(axes, vertical=True)
    axes.set_yticks(range(len(relations)), list(relations))
    axes.set_ylim(len(relations) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"part of δH₁ ({shares.gradient.unit})")
    grid(axes, "x")
    parts = [f"{words} {with_interval(e)}" for words, e in relations.items() if words != "together"]
    whole = shares.gradient
    caption = (
        f"Not the population of the budget, which is measured on E: on {shares.measured_on} the "
        f"gradient's part is {with_interval(whole)} {whole.unit}, {listed(parts)}."
    )
    numbers = {f"{words}, part of δH₁": estimate for words, estimate in relations.items()}
    return Panel(
        "shares",
        "Whose responses moved whose, on U's prompts",
        caption,
        influence.source(),
        data,
        figure,
        numbers=numbers,
    )
