"""What figures are made of: marks (lines, points, bars) on axes with labels and a legend.

A mark is a function of axes; `chart` draws marks into a figure. A figure is WIDTH units wide, which
is a column of the page on a desktop; on a phone it shrinks by a fifth and can still be read.

A meaning has one colour in every figure, in a light and a dark shade. Figures are drawn in the
light shades; in the page each is replaced by its CSS variable, so that a reader who prefers a dark
screen gets the dark ones. The hues (Okabe and Ito's for what is measured and predicted; violet
against ochre for fall and rise) can be distinguished by colour-blind readers.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from isentrope.nouns.estimate import Estimate
from isentrope.reports.panel import has_interval, number
from isentrope.system.formatting import power_of_ten

COLOURS = {
    "measured": ("#0b62a8", "#6db6f2"),
    "first": ("#c8500a", "#f59a5b"),
    "second": ("#00805f", "#45cba0"),
    "fall": ("#6a48b5", "#a98cf0"),
    "rise": ("#a67c00", "#e2b73c"),
    "reward": ("#b83a6f", "#f284ae"),
    "loss": ("#586474", "#98a4b3"),
    "together": ("#17708a", "#62c4dd"),
    "apart": ("#b5484f", "#f08d90"),
    "ink": ("#1c2128", "#e8eaed"),
    "muted": ("#5a6573", "#a3adb9"),
    "line": ("#dfe3e8", "#343b45"),
    "paper": ("#fdfdfc", "#15181c"),
}
"""The light and the dark shade by the name of the CSS variable."""

MEASURED, FIRST, SECOND, FALL, RISE, REWARD, LOSS, TOGETHER, APART, INK, MUTED, LINE, PAPER = (
    light for light, _ in COLOURS.values()
)


def by_sign(value: float) -> str:
    """The colour of a change: that of a fall below zero, that of a rise otherwise."""
    return FALL if value < 0 else RISE


def stylesheet(dark: bool) -> str:
    """The variables of one scheme."""
    return "".join(f"--{name}:{shades[dark]};" for name, shades in COLOURS.items())


WIDTH = 390
"""Of a figure, in units that are pixels at natural size."""

DOTS = 72
"""Units per inch, as SVG has it."""

STEP = "training step"
"""The label of an axis of whole numbers."""

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.labelsize": 11.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "text.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "figure.constrained_layout.w_pad": 0.02,
    "figure.constrained_layout.h_pad": 0.03,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "text.parse_math": False,
    "svg.fonttype": "none",
}

Mark = Callable[[Axes], object]
"""Draws something on axes."""


def canvas(height: int, rows: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure in the style of the report."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / DOTS, height / DOTS), layout="constrained")
        panels = list(figure.subplots(rows, 1, squeeze=False, **options)[:, 0])
        for axes in panels:  # ticks are made when they are drawn, by the style of then
            axes.tick_params(which="both", labelsize=11, colors=MUTED)
    return figure, panels


def chart(x: str, y: str, *marks: Mark, height: int = 260, **options: Any) -> Figure:
    """A figure of marks; the arguments are those of `fill`."""
    figure, (axes,) = canvas(height)
    fill(axes, x, y, *marks, **options)
    return figure


def fill(
    axes: Axes, x: str, y: str, *marks: Mark, zero: str = "", grid: str = "y", columns: int = 3
) -> None:
    """Marks, labels, numbers at the ticks, faint lines, and a legend of what has a label.

    Args:
        axes: Empty.
        x: Label of the horizontal axis; where it is empty, the axis is left as it is.
        y: Label of the vertical axis.
        *marks: What is drawn.
        zero: Axes whose zero is marked: "x", "y" or both.
        grid: Axes with lines to read values by: "x", "y" or "both".
        columns: Of the legend.
    """
    with mpl.rc_context(STYLE):
        for mark in marks:
            mark(axes)
        for name, draw in {"x": axes.axvline, "y": axes.axhline}.items():
            if name in zero:
                draw(0, color=MUTED, linewidth=0.8, zorder=0)
        for axis, label in ((axes.xaxis, x), (axes.yaxis, y)):
            axis.set_label_text(label)
            if axis.get_scale() != "linear":
                axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
                axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
            elif label:
                axis.set_major_locator(
                    MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=label == STEP)
                )
                axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.grid(axis=grid, color=LINE, linewidth=0.8)  # pyright: ignore[reportArgumentType]
        if axes.get_legend_handles_labels()[1]:  # above the panel, where it covers nothing
            axes.legend(
                loc="lower left",
                bbox_to_anchor=(0, 1.0),
                ncols=columns,
                frameon=False,
                handlelength=1.6,
                columnspacing=1.4,
            )


def named_rows(names: Sequence[str], label: str, *marks: Mark, height: int) -> Figure:
    """Rows from top to bottom with their names, over an axis of numbers."""
    figure = chart(label, "", *marks, height=height, zero="x", grid="x")
    (axes,) = figure.axes
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def line(x: Any, y: Any, colour: str, label: str, *, band: Any = None, **style: Any) -> Mark:
    """A line, with a band from band[0] to band[1]."""

    def draw(axes: Axes) -> None:
        if band is not None:
            axes.fill_between(x, *band, color=colour, alpha=0.16, linewidth=0)
        axes.plot(x, y, color=colour, label=label, **style)

    return draw


def logged(rows: pd.DataFrame, column: str, colour: str, label: str) -> Mark:
    """A column of a log by step, in the band of its interval, or else of one standard error."""
    y, se = rows[column], rows.get(f"{column}_se", math.nan)
    ends = {"low": y - se, "high": y + se}
    band = [rows.get(f"{column}_ci_{end}", one_se).astype(float) for end, one_se in ends.items()]
    return line(rows["step"], y, colour, label, band=band)


def dashed(
    place: float, label: str, across: str = "y", dashes: Sequence[float] = (6, 2, 1, 2)
) -> Mark:
    """A dashed line across an axis at one of its values."""
    style: Any = {"color": MUTED, "dashes": dashes, "linewidth": 1.2}
    return lambda axes: (axes.axvline if across == "x" else axes.axhline)(
        place, label=label, **style
    )


def points(x: Any, y: Any, colour: str, label: str | None = None, **style: Any) -> Mark:
    """Points; those given as estimates have their errors."""
    (x, xerr), (y, yerr) = (_with_errors(list(values)) for values in (x, y))
    style = {"fmt": "o", "elinewidth": 1, "capsize": 2.5} | style
    return lambda axes: axes.errorbar(x, y, yerr, xerr, color=colour, label=label, **style)


def _with_errors(values: list[Any]) -> tuple[list[Any], np.ndarray | None]:
    if not values or not isinstance(values[0], Estimate):
        return values, None
    return [e.value for e in values], errors(values)


def errors(estimates: Iterable[Estimate]) -> np.ndarray:
    """(2, m) lengths of intervals below and above the values; 0 where one is withheld.

    A number of which only the standard error is known (n = 0) has one standard error.

    Args:
        estimates: The values.

    Returns:
        The lengths.
    """
    ends = [
        (e.value - e.ci_low, e.ci_high - e.value) if has_interval(e) else (0 if e.n else e.se,) * 2
        for e in estimates
    ]
    return np.nan_to_num(np.array(ends, dtype=float).T)


def bars(names: Sequence[str], estimates: Sequence[Estimate], label: str) -> Figure:
    """Horizontal bars with their names, coloured by sign, and whiskers at their ends."""
    values, places = [e.value for e in estimates], range(len(names))
    colours = [by_sign(value) for value in values]

    def draw(axes: Axes) -> None:
        axes.barh(places, values, 0.56, color=colours)

    whiskers = points(estimates, places, INK, fmt="none")
    return named_rows(names, label, draw, whiskers, height=90 + 30 * len(names))
