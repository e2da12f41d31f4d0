"""ΔH(η) as measured and as predicted; beside it ΔH/η, which is level where ΔH is linear.

Points carry their intervals; a hollow point has weights too uneven for one. The band is the
interval of the first-order prediction ηδH₁, the dashed line ηδH₁ + η²δH₂.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import canvas, frame, line, points, reach, zero_lines
from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, PAPER, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import has_interval, number, with_error, without_error
from isentrope.results.columns import SCHEMAS
from isentrope.results.results import MeasureResult


def delta_h_panels(reading: Reading) -> Iterator[Panel]:
    """ΔH(η), and ΔH/η."""
    measured = reading.shown(MeasureResult)
    if measured is None or not measured.result.sweep:
        return
    result, unit = measured.result, measured.result.unit
    data = pd.DataFrame([asdict(row) for row in result.sweep])
    data = data.filter(list(SCHEMAS["sweep"].columns))
    source = measured.source("results.json", "sweep.parquet")
    figures = []
    for power, label in enumerate((f"ΔH ({unit})", f"ΔH/η ({unit} per η)")):
        figure, (axes,) = canvas(310)
        draw_change(axes, result, power, label)
        figures.append(figure)
    row, width = result.at_rate(), result.linear_range
    quantities = {
        "entropy": (result.at_theta, ""),
        "first order δH₁": (result.first_order, "first_order"),
        "linear range η*": (width and replace(width, se=math.nan), ""),
    }
    if row is not None:
        own = f"sweep[{row.eta:g}].delta_h" if row.resampled is None else ""
        quantities[f"ΔH at η = {number(row.eta)}"] = (result.change_at(row), own)
    numbers, influences = measured.compared(quantities)
    yield Panel(
        "delta_h",
        "Change of entropy against the learning rate",
        _caption(result),
        source,
        data,
        figures[0],
        numbers=numbers,
        influences=influences,
    )
    title, caption = "The same per unit of learning rate", _caption_per_rate(result)
    yield Panel("delta_h_per_eta", title, caption, source, data, figures[1])


def _caption(result: MeasureResult) -> str:
    trusted = sum(row.verdict == "trust" for row in result.sweep)
    caption = f"{trusted} of {len(result.sweep)} learning rates are measured with an interval"
    agree = None
    for row in sorted(result.sweep, key=lambda row: row.eta):
        if not row.delta_h or not abs(row.first_order / row.delta_h - 1) <= 0.05:
            break
        agree = row.eta
    if agree is None:
        return f"{caption}."
    return f"{caption}; up to η = {number(agree)} first order is within 5 % of what is measured."


def _caption_per_rate(result: MeasureResult) -> str:
    if result.first_order is None:
        return "Level where entropy changes in proportion to the learning rate."
    caption = f"Level at δH₁ = {with_error(result.first_order)} while the step is small"
    if result.linear_range is None:
        return f"{caption}."
    width = without_error(result.linear_range)
    return f"{caption}; first and second order are as large at η* = {width}."


def draw_change(axes: Axes, result: MeasureResult, power: int, label: str) -> None:
    """Draw ΔH/η^power: points with their intervals, predictions with their band, rates.

    Args:
        axes: An empty panel.
        result: Of `measure`.
        power: 0 for ΔH on a signed logarithmic axis, 1 for ΔH/η.
        label: Of the vertical axis.
    """
    measured = np.array([row.eta for row in result.sweep])
    spread = 1.8 if measured.min() < measured.max() else 4.0
    rates = np.geomspace(measured.min() / spread, measured.max() * spread, 160)
    zero_lines(axes)
    width = result.linear_range
    marks = {"training rate": (result.rate, (6, 2, 1, 2)), "η*": (width and width.value, (1, 2))}
    for name, (rate, dashes) in marks.items():
        if rate is not None and rates[0] <= rate <= rates[-1]:
            axes.axvline(rate, color=MUTED.light, dashes=dashes, linewidth=1.2, label=name)
    first, second, scale = result.first_order, result.second_order, rates ** (1 - power)
    if first is not None:
        band = (first.ci_low * scale, first.ci_high * scale) if has_interval(first) else None
        line(axes, rates, first.value * scale, FIRST, "first order", band=band)
        if second is not None:
            both = (first.value + second.value * rates) * scale
            line(axes, rates, both, SECOND, "first + second", dashes=(4, 2))
    seen = np.concatenate([_draw_points(axes, result, power), [0.0]])
    axes.set_xscale("log")
    axes.set_xlim(rates[0], rates[-1])
    _limit(axes, seen, power)
    frame(axes, "learning rate η", label)


def _draw_points(axes: Axes, result: MeasureResult, power: int) -> np.ndarray:
    """Draw what was measured; returns each value that must be inside, not the far second order."""
    hollow = {"mfc": PAPER.light}
    kinds = {
        "measured": (MEASURED, {}, [r for r in result.sweep if r.verdict == "trust"]),
        "uneven weights": (MEASURED, hollow, [r for r in result.sweep if r.verdict != "trust"]),
        "fresh responses": (INK, {"fmt": "D", "ms": 4}, [r for r in result.sweep if r.resampled]),
    }
    seen = [row.first_order / row.eta**power for row in result.sweep]
    for label, (colour, style, rows) in kinds.items():
        if rows:
            fresh = label == "fresh responses"
            found = [result.change_at(r) if fresh else result.measured_at(r) for r in rows]
            eta = np.array([row.eta for row in rows])
            scaled = [
                _over(estimate, row.eta**power) for estimate, row in zip(found, rows, strict=True)
            ]
            values = [estimate.value for estimate in scaled]
            points(axes, eta, values, colour, label, yerr=reach(scaled), zorder=4, **style)
            seen += [x for e in scaled for x in (e.value, e.ci_low, e.ci_high)]
    return np.array([value for value in seen if math.isfinite(value)])


def _over(estimate: Estimate, scale: float) -> Estimate:
    ends = {name: getattr(estimate, name) / scale for name in ("value", "ci_low", "ci_high")}
    return replace(estimate, **ends)


def _limit(axes: Axes, seen: np.ndarray, power: int) -> None:
    """Room for what was seen and zero; of ΔH on a logarithmic axis in both directions."""
    low, high = seen.min(), seen.max()
    sizes = np.abs(seen[seen != 0])
    if power == 1 or not len(sizes):
        margin = 0.08 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)
        return
    smallest = 10 ** np.floor(np.log10(sizes.min()))
    axes.set_yscale("symlog", linthresh=smallest)
    axes.yaxis.get_major_locator().set_params(numticks=7)  # pyright: ignore
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(2.5 * low if low < 0 else -smallest / 2, 2.5 * high if high > 0 else smallest / 2)
