"""What figures are drawn with: lines with bands, points and bars with intervals, and their frame.

A figure is WIDTH units wide, which is a column of the page on a desktop; on a phone it shrinks by a
fifth and can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import INK, LINE, MUTED, PAPER, Colour, by_sign
from isentrope.reports.sentences import has_interval, number
from isentrope.system.formatting import power_of_ten

WIDTH = 390
"""Of a figure, in units that are pixels at natural size."""

DOTS = 72
"""Units per inch, as SVG has it."""

STEP = "training step"
"""The label of an axis of whole numbers."""

FIRST_IN_LEGEND = ("measured", "uneven weights", "fresh responses")
"""Labels that come before those of predictions and marks, whatever was drawn first."""

STYLE: dict[Any, Any] = {
    "font.size": 11.5,
    "font.family": "DejaVu Sans",
    "axes.labelsize": 11.5,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": MUTED.light,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "text.color": INK.light,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER.light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "svg.fonttype": "none",
}


def canvas(height: int = 300, rows: int = 1, **options: object) -> tuple[Figure, list[Axes]]:
    """An empty figure in the style of the report."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / DOTS, height / DOTS), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03)  # pyright: ignore
        panels = figure.subplots(rows, 1, squeeze=False, **options)  # pyright: ignore
        for axes in panels[:, 0]:  # ticks are made when they are drawn, by the style of then
            axes.tick_params(which="both", labelsize=STYLE["xtick.labelsize"], colors=MUTED.light)
    return figure, list(panels[:, 0])


def zero_lines(axes: Axes, which: str = "y") -> None:
    """The lines at which nothing changes, of the axes named."""
    style = {"color": MUTED.light, "linewidth": 0.8, "zorder": 0}
    if "y" in which:
        axes.axhline(0, **style)
    if "x" in which:
        axes.axvline(0, **style)


def line(
    axes: Axes, x: Any, y: Any, colour: Colour, label: str, *, band: Any = None, **style: Any
) -> None:
    """A line, with a band from band[0] to band[1]."""
    if band is not None:
        axes.fill_between(x, *band, color=colour.light, alpha=0.16, linewidth=0)
    axes.plot(x, y, color=colour.light, label=label, **style)


def logged(axes: Axes, rows: pd.DataFrame, column: str, colour: Colour, label: str) -> None:
    """A column of a log by step, with a band of one standard error where it has one."""
    y, se = rows[column], rows.get(f"{column}_se")
    band = None if se is None else (y - se, y + se)
    line(axes, rows["step"], y, colour, label, band=band)


def points(
    axes: Axes,
    x: Any,
    y: Any,
    colour: Colour,
    label: str | None = None,
    *,
    xerr: Any = None,
    yerr: Any = None,
    **style: Any,
) -> None:
    """Points with their errors."""
    style = {"fmt": "o", "ms": 4.5, "elinewidth": 1, "capsize": 2.5} | style
    axes.errorbar(x, y, yerr, xerr, color=colour.light, label=label, **style)


def reach(estimates: Iterable[Estimate]) -> np.ndarray:
    """(2, m) lengths of intervals below and above the values; 0 where there is no interval."""
    ends = [
        (e.value - e.ci_low, e.ci_high - e.value) if has_interval(e) else (0.0, 0.0)
        for e in estimates
    ]
    return np.array(ends).T


def annotate(axes: Axes, x: float, y: float, text: str) -> None:
    """A few words beside a point, on a ground of their own."""
    axes.annotate(
        text,
        (x, y),
        xytext=(8, 6),
        textcoords="offset points",
        fontsize=10.5,
        color=INK.light,
        bbox={"facecolor": PAPER.light, "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        zorder=5,
    )


def bars(
    axes: Axes,
    names: Sequence[str],
    values: Any,
    whiskers: Any,
    label: str,
    *,
    left: Any = 0.0,
    colours: Sequence[str] | None = None,
) -> None:
    """Horizontal bars from top to bottom with their names, and whiskers at their ends."""
    places = range(len(names))
    axes.barh(places, values, 0.56, left, color=colours or [by_sign(value) for value in values])
    style = {"fmt": "none", "elinewidth": 1.2, "capsize": 3}
    points(axes, np.add(left, values), places, INK, xerr=whiskers, **style)
    named_rows(axes, names, label)


def named_rows(axes: Axes, names: Sequence[str], label: str) -> None:
    """Rows from top to bottom with their names, over an axis of numbers."""
    zero_lines(axes, "x")
    frame(axes, label, "", grid="x")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=4)


def frame(axes: Axes, x: str, y: str, *, grid: str = "y", columns: int = 2) -> None:
    """Labels, numbers at the ticks, faint lines, and a legend of what has a label.

    Args:
        axes: With everything drawn and its scales set.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        grid: Axes with lines to read values by: "x", "y" or "both".
        columns: Of the legend.
    """
    for axis, label in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_label_text(label)
        if axis.get_scale() != "linear":
            axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
            axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        elif label == STEP:
            axis.set_major_locator(MaxNLocator("auto", integer=True))
            axis.set_major_formatter("{x:.0f}")
        else:
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.grid(axis=grid, color=LINE.light, linewidth=0.8)  # pyright: ignore
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[1]:
        _legend(axes, columns)


def _legend(axes: Axes, columns: int) -> None:
    """A legend above a panel, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] not in FIRST_IN_LEGEND)
    with mpl.rc_context(STYLE):
        axes.legend(
            [handles[k] for k in order],
            [labels[k] for k in order],
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=columns,
            frameon=False,
            borderaxespad=0.2,
            handlelength=1.6,
            columnspacing=1.4,
            labelcolor=INK.light,
        )
