"""ΔH(η) as measured and as predicted; beside it ΔH/η, which is level where ΔH is linear.

Points carry their intervals; a hollow point has weights too uneven for one. The band is the
interval of the first-order prediction ηδH₁, the dashed line ηδH₁ + η²δH₂.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import (
    FIRST,
    INK,
    MEASURED,
    PAPER,
    SECOND,
    Mark,
    chart,
    dashed,
    line,
    points,
)
from isentrope.reports.panel import Panel, number, with_error, without_error
from isentrope.reports.read_run import Reading
from isentrope.results.results import MeasureResult
from isentrope.results.verbs import SCHEMAS


def delta_h_panels(reading: Reading) -> Iterator[Panel]:
    """ΔH(η), and ΔH/η."""
    measured = reading.shown(MeasureResult)
    if measured is None or not measured.result.sweep:
        return
    result, unit = measured.result, measured.result.unit
    data = pd.DataFrame(map(vars, result.sweep)).filter(list(SCHEMAS["sweep"].columns))
    source = measured.source("results.json", "sweep.parquet")
    figures = [
        chart(
            "learning rate η", label, *change_marks(result, power), height=310, zero="y", columns=2
        )
        for power, label in enumerate((f"ΔH ({unit})", f"ΔH/η ({unit} per η)"))
    ]
    row, width = result.at_rate(), result.linear_range
    quantities = {
        "entropy": (result.at_theta, ""),
        "first order δH₁": (result.first_order, "first_order"),
        "linear range η*": (width and replace(width, se=math.nan), ""),
    }
    if row is not None:
        own = f"sweep[{row.eta:g}].delta_h" if row.resampled is None else ""
        quantities[f"ΔH at η = {number(row.eta)}"] = (result.change_at(row), own)
    trusted = sum(row.verdict == "trust" for row in result.sweep)
    yield Panel(
        "delta_h",
        "Change of entropy against the learning rate",
        f"{trusted} of {len(result.sweep)} learning rates are measured with an interval.",
        source,
        data,
        figures[0],
        *measured.compared(quantities),
    )
    caption = "Level where entropy changes in proportion to the learning rate"
    if result.first_order is not None:
        caption = f"Level at δH₁ = {with_error(result.first_order)} while the step is small"
    if width is not None:
        caption += f"; first and second order are as large at η* = {without_error(width)}"
    title = "The same per unit of learning rate"
    yield Panel("delta_h_per_eta", title, f"{caption}.", source, data, figures[1])


def change_marks(result: MeasureResult, power: int) -> list[Mark]:
    """What is drawn of ΔH/η^power: points with their intervals, predictions with their band, rates.

    Args:
        result: Of `measure`.
        power: 0 for ΔH on a signed logarithmic axis, 1 for ΔH/η.

    Returns:
        Marks, in the order in which they are drawn.
    """
    measured = [row.eta for row in result.sweep]
    spread = 1.8 if min(measured) < max(measured) else 4.0
    rates = np.geomspace(min(measured) / spread, max(measured) * spread, 160)
    marks, first, second = list[Mark](), result.first_order, result.second_order
    trusted = [row for row in result.sweep if row.verdict == "trust"]
    uneven = [row for row in result.sweep if row.verdict != "trust"]
    fresh = [row for row in result.sweep if row.resampled]
    for label, rows, change, colour, style in (
        ("measured", trusted, result.measured_at, MEASURED, {}),
        ("uneven weights", uneven, result.measured_at, MEASURED, {"mfc": PAPER}),
        ("fresh responses", fresh, result.change_at, INK, {"fmt": "D"}),
    ):
        if rows:
            found = [_over(change(row), row.eta**power) for row in rows]
            eta = [row.eta for row in rows]
            marks.append(points(eta, found, colour, label, zorder=4, **style))
    sizes = [abs(row.delta_h) for row in result.sweep if abs(row.delta_h) > 0]
    smallest = 10 ** math.floor(math.log10(min(sizes))) if sizes and power == 0 else None
    marks.append(lambda axes: _limit(axes, rates, smallest))
    scale = rates ** (1 - power)
    if first is not None:
        band = (first.ci_low * scale, first.ci_high * scale)
        marks.append(line(rates, first.value * scale, FIRST, "first order", band=band))
        if second is not None:
            both = (first.value + second.value * rates) * scale
            marks.append(line(rates, both, SECOND, "first + second", dashes=(4, 2)))
    reach = result.linear_range and result.linear_range.value
    for name, rate, dashes in (("training rate", result.rate, (6, 2, 1, 2)), ("η*", reach, (1, 2))):
        if rate is not None and rates[0] <= rate <= rates[-1]:
            marks.append(dashed(rate, name, "x", dashes))
    return marks


def _over(estimate: Estimate, scale: float) -> Estimate:
    ends = {name: getattr(estimate, name) / scale for name in ("value", "ci_low", "ci_high")}
    return replace(estimate, se=math.nan, **ends)


def _limit(axes: Axes, rates: np.ndarray, smallest: float | None) -> None:
    """Room for the points and zero, and not for far predictions, which are drawn later."""
    axes.set_xscale("log")
    axes.set_xlim(rates[0], rates[-1])
    if smallest is not None:
        axes.set_yscale("symlog", linthresh=smallest)
        axes.yaxis.get_major_locator().set_params(numticks=7)  # pyright: ignore
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0), max(high, 0))
