"""ΔH(η) as measured and as predicted; beside it ΔH/η, which is level where ΔH is linear.

Points carry their intervals; a hollow point has weights too uneven for one. The band is the
interval of the first-order prediction ηδH₁, the dashed line ηδH₁ + η²δH₂.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, PAPER, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.sentences import has_interval, number, without_error
from isentrope.reports.svg import canvas, grid, legend, powers, zero_line
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import SweepRow


def delta_h_panels(measured: Measurement[MeasureResult]) -> list[Panel]:
    """ΔH(η), and ΔH/η."""
    result = measured.result
    if not result.sweep:
        return []
    data = pd.DataFrame([asdict(row) for row in result.sweep]).drop(columns="resampled")
    source = measured.source("results.json", "sweep.parquet")
    unit = result.unit
    return [
        Panel(
            "delta_h",
            "Change of entropy against the learning rate",
            _caption(result),
            source,
            data,
            _figure(result, 0, f"ΔH ({unit})"),
            numbers=_numbers(result),
            influences=measured.influences(_influenced(result)),
        ),
        Panel(
            "delta_h_per_eta",
            "The same per unit of learning rate",
            _caption_per_rate(result),
            source,
            data,
            _figure(result, 1, f"ΔH/η ({unit} per η)"),
        ),
    ]


def _numbers(result: MeasureResult) -> dict[str, Estimate]:
    reach, row = result.linear_range, result.at_rate()
    estimates = {
        "entropy": result.at_theta,
        "first order δH₁": result.first_order,
        "linear range η*": reach and replace(reach, se=math.nan),
    }
    if row is not None:
        estimates[_at(row)] = result.change_at(row)
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def _influenced(result: MeasureResult) -> dict[str, str]:
    row = result.at_rate()
    names = {"first order δH₁": "first_order"}
    if row is not None and row.resampled is None:
        names[_at(row)] = f"sweep[{row.eta:g}].delta_h"
    return names


def _at(row: SweepRow) -> str:
    return f"ΔH at η = {number(row.eta)}"


def _caption(result: MeasureResult) -> str:
    verdicts = [row.verdict for row in result.sweep]
    trusted = sum(verdict == "trust" for verdict in verdicts)
    caption = f"{trusted} of {len(verdicts)} learning rates are measured with an interval"
    agree = _agreeing(result)
    if agree is not None:
        caption += f"; up to η = {number(agree)} first order is within 5 % of what is measured"
    return f"{caption}."


def _agreeing(result: MeasureResult) -> float | None:
    """The largest rate up to which every prediction is within 5 % of the measurement."""
    last = None
    for row in sorted(result.sweep, key=lambda row: row.eta):
        predicted, measured = row.first_order, row.delta_h
        if not measured or not abs(predicted / measured - 1) <= 0.05:
            return last
        last = row.eta
    return last


def _caption_per_rate(result: MeasureResult) -> str:
    first, reach = result.first_order, result.linear_range
    if first is None:
        return "Level where entropy changes in proportion to the learning rate."
    slope = f"{number(first.value)} ± {number(first.se, 2)}"
    caption = f"Level at δH₁ = {slope} while the step is small"
    if reach is None:
        return f"{caption}."
    return f"{caption}; first and second order are as large at η* = {without_error(reach)}."


def _figure(result: MeasureResult, power: int, label: str) -> Figure:
    figure, (axes,) = canvas(310)
    draw_change(axes, result, power)
    axes.set_xlabel("learning rate η")
    axes.set_ylabel(label)
    legend(axes)
    return figure


def draw_change(axes: Axes, result: MeasureResult, power: int) -> None:
    """Draw ΔH/η^power: points with their intervals, predictions with their band, rates.

    Args:
        axes: An empty panel.
        result: Of `measure`.
        power: 0 for ΔH on a signed logarithmic axis, 1 for ΔH/η.
    """
    measured = np.array([row.eta for row in result.sweep])
    spread = 1.8 if measured.min() < measured.max() else 4.0
    rates = np.geomspace(measured.min() / spread, measured.max() * spread, 160)
    zero_line(axes)
    _draw_marks(axes, result, rates)
    _draw_predictions(axes, result, rates, power)
    _draw_points(axes, result, power)
    axes.set_xscale("log")
    axes.set_xlim(rates[0], rates[-1])
    powers(axes)
    if power == 0:
        _signed_powers(axes, _shown(result, 0))
    else:
        axes.set_ylim(*_limits(_shown(result, 1)))
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
    grid(axes)


def _draw_predictions(axes: Axes, result: MeasureResult, rates: np.ndarray, power: int) -> None:
    first, second = result.first_order, result.second_order
    if first is None:
        return
    scale = rates ** (1 - power)
    if has_interval(first):
        band = (first.ci_low * scale, first.ci_high * scale)
        axes.fill_between(rates, *band, color=FIRST.light, alpha=0.16, linewidth=0)
    axes.plot(rates, first.value * scale, color=FIRST.light, label="first order")
    if second is not None:
        both = (first.value + second.value * rates) * scale
        axes.plot(rates, both, color=SECOND.light, dashes=(4, 2), label="first + second")


def _draw_points(axes: Axes, result: MeasureResult, power: int) -> None:
    kinds = {
        "measured": [row for row in result.sweep if row.verdict == "trust"],
        "uneven weights": [row for row in result.sweep if row.verdict != "trust"],
    }
    for label, rows in kinds.items():
        face = PAPER.light if label == "uneven weights" else MEASURED.light
        marked = [(row.eta, result.measured_at(row)) for row in rows]
        _draw_estimates(axes, marked, power, fmt="o", label=label, mfc=face, color=MEASURED.light)
    fresh = [(row.eta, row.resampled) for row in result.sweep if row.resampled is not None]
    style = {"fmt": "D", "ms": 4, "color": INK.light, "label": "fresh responses"}
    _draw_estimates(axes, fresh, power, **style)


def _draw_estimates(
    axes: Axes, marked: Sequence[tuple[float, Estimate]], power: int, **style: Any
) -> None:
    """Points with their intervals; no bar where there is no interval."""
    if not marked:
        return
    rates = np.array([eta for eta, _ in marked])
    scale = rates**power
    value, low, high = (
        np.array([getattr(estimate, end) for _, estimate in marked]) / scale
        for end in ("value", "ci_low", "ci_high")
    )
    bars = np.nan_to_num(np.stack((value - low, high - value)))
    axes.errorbar(rates, value, bars, capsize=3, zorder=4, **style)


def _draw_marks(axes: Axes, result: MeasureResult, rates: np.ndarray) -> None:
    reach = result.linear_range
    marks = {"training rate": result.rate, "η*": None if reach is None else reach.value}
    for (label, rate), dashes in zip(marks.items(), ((6, 2, 1, 2), (1, 2)), strict=True):
        if rate is not None and rates[0] <= rate <= rates[-1]:
            axes.axvline(rate, color=MUTED.light, dashes=dashes, linewidth=1.2, label=label)


def _shown(result: MeasureResult, power: int) -> np.ndarray:
    """Every value that a panel must have room for; not the far second order."""
    values = []
    for row in result.sweep:
        seen = [e for e in (result.measured_at(row), row.resampled) if e is not None]
        shown = [x for e in seen for x in (e.value, e.ci_low, e.ci_high)]
        shown.append(row.first_order)
        values += [value / row.eta**power for value in shown if math.isfinite(value)]
    return np.array(values or [0.0])


def _limits(values: np.ndarray) -> tuple[float, float]:
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin


def _signed_powers(axes: Axes, values: np.ndarray) -> None:
    """A symmetric logarithmic axis with at most seven labelled powers of ten."""
    sizes = np.abs(values[values != 0])
    if not len(sizes):
        return
    smallest, largest = np.floor(np.log10(sizes.min())), np.ceil(np.log10(sizes.max()))
    axes.set_yscale("symlog", linthresh=10**smallest)
    up, down = values.max() > 0, values.min() < 0
    every = max(1, int(np.ceil((largest - smallest + 1) * (1 + (up and down)) / 6)))
    ticks = 10.0 ** np.arange(largest, smallest - 1, -every)
    located = [*(-ticks if down else []), 0.0, *(ticks if up else [])]
    axes.yaxis.set_major_locator(FixedLocator(located))
    axes.yaxis.set_minor_locator(NullLocator())
    powers(axes, "y")
    edge = 10**smallest / 2
    axes.set_ylim(2.5 * values.min() if down else -edge, 2.5 * values.max() if up else edge)
