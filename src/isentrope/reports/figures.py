"""Figures of results, drawn from the content of results.json and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
"""Colours of Okabe and Ito's palette, told apart by colour-blind readers."""


def entropy_change_figure(results: dict[str, Any]) -> Figure:
    """ΔH(η) as measured and as predicted; below it ΔH/η, which is level where ΔH is linear.

    Points carry their intervals; a hollow point has weights too uneven to be trusted with one.
    The band is the interval of the first-order prediction.

    Args:
        results: The content of results.json of `measure`.

    Returns:
        A figure to be saved.
    """
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    rates = np.array([row["eta"] for row in results["sweep"]], dtype=float)
    spread = 1.6 if rates.min() < rates.max() else 4.0
    grid = np.geomspace(rates.min() / spread, rates.max() * spread, 300)
    for axes, power in ((upper, 0), (lower, 1)):
        axes.axhline(0, color=GREY, linewidth=0.8)
        _draw_predictions(axes, results, grid, power)
        _draw_points(axes, results, power)
        _draw_marks(axes, results, grid)
        axes.set_xscale("log")
        axes.set_xlim(grid[0], grid[-1])
        axes.spines[["top", "right"]].set_visible(False)
    unit = results["estimator"]["unit"]
    upper.set_yscale("symlog", linthresh=10 ** np.floor(np.log10(_smallest(results))))
    upper.set_ylim(*_limits(results, 0))
    upper.set_ylabel(f"ΔH ({unit})")
    lower.set_ylabel("ΔH/η")
    lower.set_xlabel("learning rate η")
    lower.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    lower.set_ylim(*_limits(results, 1))
    entropy = results["entropy"][results["estimator"]["functional"]]
    name = results["policy"]["name"]
    upper.set_title(f"{name}: H = {entropy['value']:.4g} ± {entropy['se']:.2g} {unit}", loc="left")
    figure.legend(
        *upper.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    return figure


def _draw_predictions(axes: Axes, results: dict[str, Any], grid: np.ndarray, power: int) -> None:
    first, second = results["first_order"], results["second_order"]
    if first is None:
        return
    scale = grid ** (1 - power)
    axes.plot(grid, first["value"] * scale, color=ORANGE, label="first order")
    if first["ci_low"] is not None:
        band = (first["ci_low"] * scale, first["ci_high"] * scale)
        axes.fill_between(grid, *band, color=ORANGE, alpha=0.18, linewidth=0)
    if second is not None:
        both = first["value"] * scale + second["value"] * grid * scale
        axes.plot(grid, both, color=GREEN, linestyle="--", label="first + second order")


def _draw_points(axes: Axes, results: dict[str, Any], power: int) -> None:
    trusted = [row for row in results["sweep"] if row["verdict"] == "trust"]
    doubtful = [row for row in results["sweep"] if row["verdict"] != "trust"]
    confidence = f"{results['estimator']['confidence']:.0%} interval"
    style: dict[str, Any] = {"fmt": "o", "color": BLUE, "capsize": 3, "zorder": 3}
    if trusted:
        values, bars = _values(trusted, "deltaH_true", power)
        label = f"measured, {confidence}"
        axes.errorbar([r["eta"] for r in trusted], values, bars, label=label, **style)
    if doubtful:
        values, _ = _values(doubtful, "deltaH_true", power)
        label = "measured, uneven weights"
        axes.errorbar([r["eta"] for r in doubtful], values, label=label, mfc="white", **style)
    fresh = [row | row["resampled"] for row in results["sweep"] if row["resampled"]]
    if fresh:
        values, bars = _values(fresh, "value", power)
        style |= {"fmt": "D", "color": "black", "ms": 4}
        axes.errorbar([r["eta"] for r in fresh], values, bars, label="fresh responses", **style)


def _values(rows: list[dict[str, Any]], key: str, power: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and the (2, m) lengths of their bars, NaN where there is no interval."""
    low, high = ("ci_low", "ci_high") if key == "value" else (f"{key}_ci_low", f"{key}_ci_high")
    scale = np.array([row["eta"] ** power for row in rows])
    columns = [np.array([row[k] for row in rows], dtype=float) for k in (key, low, high)]
    value, below, above = (column / scale for column in columns)
    return value, np.stack((value - below, above - value))


def _draw_marks(axes: Axes, results: dict[str, Any], grid: np.ndarray) -> None:
    marks = {"training rate": results["step"]["rate_of_interest"]}
    if results["linear_range"] is not None:
        marks["linear range η*"] = results["linear_range"]["value"]
    for (label, rate), style in zip(marks.items(), ("-.", ":"), strict=False):
        if rate is not None and grid[0] <= rate <= grid[-1]:
            axes.axvline(rate, color=GREY, linestyle=style, linewidth=1, label=label)


def _smallest(results: dict[str, Any]) -> float:
    """The smallest |ΔH| shown: below it the upper axis is linear, and so crosses zero."""
    shown = [row[key] for row in results["sweep"] for key in ("deltaH_true", "deltaH_approx")]
    sizes = [abs(value) for value in shown if value]
    return min(sizes, default=1.0)


def _limits(results: dict[str, Any], power: int) -> tuple[float, float]:
    """Limits of a panel: zero, the points, their bars and first order; not the far second order."""
    values = [0.0]
    for row in results["sweep"]:
        keys = ("deltaH_true", "deltaH_true_ci_low", "deltaH_true_ci_high", "deltaH_approx")
        fresh = row["resampled"] or {}
        shown = [
            *(row[key] for key in keys),
            *(fresh.get(key) for key in ("value", "ci_low", "ci_high")),
        ]
        values += [value / row["eta"] ** power for value in shown if value is not None]
    low, high = min(values), max(values)
    if power == 0:  # a logarithmic axis: the margin is a factor
        edge = _smallest(results) / 3
        return 2 * low or -edge, 2 * high or edge
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin
