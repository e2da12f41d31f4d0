"""ΔH(η) as measured and as predicted; beside it ΔH/η, which is level where ΔH is linear.

Points carry their intervals; a hollow point has weights too uneven for one. The band is the
interval of the first-order prediction ηδH₁, the dashed line ηδH₁ + η²δH₂.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, PAPER, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.rows import at_training_rate, change_at
from isentrope.reports.sentences import number, without_error
from isentrope.reports.svg import canvas, grid, legend, powers, zero_line


def delta_h_panels(measured: Measurement) -> list[Panel]:
    """ΔH(η), and ΔH/η.

    Args:
        measured: Of `measure`.

    Returns:
        Two panels.
    """
    results = measured.results
    if not results["sweep"]:
        return []
    data = pd.DataFrame(
        [{k: v for k, v in r.items() if k != "resampled"} for r in results["sweep"]]
    )
    options: dict[str, Any] = {"source": measured.source("results.json", "sweep.parquet")}
    unit = results["estimator"]["unit"]
    return [
        Panel(
            "delta_h",
            "Change of entropy against the learning rate",
            _caption(results),
            data=data,
            figure=_figure(results, 0, f"ΔH ({unit})"),
            numbers=_numbers(results),
            **options,
        ),
        Panel(
            "delta_h_per_eta",
            "The same per unit of learning rate",
            _caption_per_rate(results),
            data=data,
            figure=_figure(results, 1, f"ΔH/η ({unit} per η)"),
            **options,
        ),
    ]


def _numbers(results: dict[str, Any]) -> dict[str, Any]:
    unit = results["estimator"]["unit"]
    found = {
        "entropy": results["entropy"][results["estimator"]["functional"]],
        "first order δH₁": results["first_order"],
        "linear range η*": results["linear_range"] and {**results["linear_range"], "se": None},
    }
    row = at_training_rate(results)
    if row is not None:
        n = found["entropy"]["n"]
        found[f"ΔH at η = {number(row['eta'])}"] = change_at(row, unit) | {"n": n}
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _caption(results: dict[str, Any]) -> str:
    verdicts = [row["verdict"] for row in results["sweep"]]
    trusted = sum(verdict == "trust" for verdict in verdicts)
    said = f"{trusted} of {len(verdicts)} learning rates are measured with an interval"
    agree = _agreeing(results)
    if agree is not None:
        said += f"; up to η = {number(agree)} first order is within 5 % of what is measured"
    return f"{said}."


def _agreeing(results: dict[str, Any]) -> float | None:
    """The largest rate up to which every prediction is within 5 % of the measurement."""
    last = None
    for row in sorted(results["sweep"], key=lambda row: row["eta"]):
        told, seen = row["deltaH_approx"], row["deltaH_true"]
        if told is None or not seen or abs(told / seen - 1) > 0.05:
            return last
        last = row["eta"]
    return last


def _caption_per_rate(results: dict[str, Any]) -> str:
    first, reach = results["first_order"], results["linear_range"]
    if first is None:
        return "Level where entropy changes in proportion to the learning rate."
    slope = f"{number(first['value'])} ± {number(first['se'], 2)}"
    said = f"Level at δH₁ = {slope} while the step is small"
    if reach is None:
        return f"{said}."
    return f"{said}; first and second order are as large at η* = {without_error(reach)}."


def _figure(results: dict[str, Any], power: int, label: str) -> Figure:
    figure, (axes,) = canvas(310)
    draw_change(axes, results, power)
    axes.set_xlabel("learning rate η")
    axes.set_ylabel(label)
    legend(axes)
    return figure


def draw_change(axes: Axes, results: dict[str, Any], power: int) -> None:
    """Draw ΔH/η^power: points with their intervals, predictions with their band, rates.

    Args:
        axes: An empty panel.
        results: The content of results.json of `measure`.
        power: 0 for ΔH on a signed logarithmic axis, 1 for ΔH/η.
    """
    measured = np.array([row["eta"] for row in results["sweep"]], dtype=float)
    spread = 1.8 if measured.min() < measured.max() else 4.0
    rates = np.geomspace(measured.min() / spread, measured.max() * spread, 160)
    zero_line(axes)
    _draw_marks(axes, results, rates)
    _draw_predictions(axes, results, rates, power)
    _draw_points(axes, results, power)
    axes.set_xscale("log")
    axes.set_xlim(rates[0], rates[-1])
    powers(axes)
    if power == 0:
        _signed_powers(axes, _shown(results, 0))
    else:
        axes.set_ylim(*_limits(_shown(results, 1)))
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
    grid(axes)


def _draw_predictions(axes: Axes, results: dict[str, Any], rates: np.ndarray, power: int) -> None:
    first, second = results["first_order"], results["second_order"]
    if first is None:
        return
    scale = rates ** (1 - power)
    if first["ci_low"] is not None:
        band = (first["ci_low"] * scale, first["ci_high"] * scale)
        axes.fill_between(rates, *band, color=FIRST.light, alpha=0.16, linewidth=0)
    axes.plot(rates, first["value"] * scale, color=FIRST.light, label="first order")
    if second is not None:
        both = (first["value"] + second["value"] * rates) * scale
        axes.plot(rates, both, color=SECOND.light, dashes=(4, 2), label="first + second")


def _draw_points(axes: Axes, results: dict[str, Any], power: int) -> None:
    style: dict[str, Any] = {"fmt": "o", "color": MEASURED.light, "capsize": 3, "zorder": 4}
    kinds = {
        "measured": [row for row in results["sweep"] if row["verdict"] == "trust"],
        "uneven weights": [row for row in results["sweep"] if row["verdict"] != "trust"],
    }
    for label, rows in kinds.items():
        if not rows:
            continue
        ends = ("deltaH_true", "deltaH_true_ci_low", "deltaH_true_ci_high")
        face = PAPER.light if label == "uneven weights" else MEASURED.light
        value, bars = _values(rows, ends, power)
        rates = [row["eta"] for row in rows]
        axes.errorbar(rates, value, bars, label=label, mfc=face, **style)
    fresh = [row | row["resampled"] for row in results["sweep"] if row["resampled"]]
    if fresh:
        value, bars = _values(fresh, ("value", "ci_low", "ci_high"), power)
        style |= {"fmt": "D", "color": INK.light, "ms": 4}
        axes.errorbar([row["eta"] for row in fresh], value, bars, label="fresh responses", **style)


def _values(
    rows: list[dict[str, Any]], keys: tuple[str, str, str], power: int
) -> tuple[np.ndarray, np.ndarray]:
    """Values, and (2, m) lengths of their bars; no bar where there is no interval."""
    scale = np.array([row["eta"] ** power for row in rows])
    value, low, high = (np.array([r[key] for r in rows], dtype=float) / scale for key in keys)
    return value, np.nan_to_num(np.stack((value - low, high - value)))


def _draw_marks(axes: Axes, results: dict[str, Any], rates: np.ndarray) -> None:
    marks = {"training rate": results["step"].get("rate_of_interest")}
    if results["linear_range"] is not None:
        marks["η*"] = results["linear_range"]["value"]
    for (label, rate), dashes in zip(marks.items(), ((6, 2, 1, 2), (1, 2)), strict=False):
        if rate is not None and rates[0] <= rate <= rates[-1]:
            axes.axvline(rate, color=MUTED.light, dashes=dashes, linewidth=1.2, label=label)


def _shown(results: dict[str, Any], power: int) -> np.ndarray:
    """Every value that a panel must have room for; not the far second order."""
    keys = ("deltaH_true", "deltaH_true_ci_low", "deltaH_true_ci_high", "deltaH_approx")
    values = []
    for row in results["sweep"]:
        fresh = row["resampled"] or {}
        shown = [row[key] for key in keys]
        shown += [fresh.get(key) for key in ("value", "ci_low", "ci_high")]
        values += [value / row["eta"] ** power for value in shown if value is not None]
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
