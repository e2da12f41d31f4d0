"""What figures are made of: marks (series, levels, bars) on axes with labels and a legend.

A mark is a function of axes; a `Chart` draws marks into a figure. A figure is WIDTH units wide,
which is a column of the page on a desktop; on a phone it shrinks by a fifth and can still be read.

A meaning has one colour in every figure, in a light and a dark shade. Figures are drawn in the
light shades; in the page each is replaced by its CSS variable, so that a reader who prefers a dark
screen gets the dark ones. Colour-blind readers can distinguish the hues, and what a legend names
also differs in marker, dashes or filling.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isentrope.nouns.estimate import Estimate
from isentrope.reports.words import rows_of
from isentrope.system.formatting import PAGE, power_of_ten

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

OF_ORDERS = {"first order": FIRST, "second order": SECOND, "measured": MEASURED}
"""Colours of bars of these names."""


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

TRAINING_STEP = "training step"
"""The label of an axis of whole numbers."""

FEW_POINTS = 16
"""Points up to which a curve has bars, and no band."""

MARKERS = "os^Dv*PX"
"""Markers of the curves of one row, so that none is known by its hue alone."""

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


@dataclass(frozen=True)
class Series:
    """Points, or a line, with their errors where they are given as estimates.

    Attributes:
        label: In the legend.
        colour: Of all of it.
        x: Places, a sequence of numbers or of estimates.
        y: Values, likewise.
        fmt: Marker and line, as matplotlib has them. A line of many points has its errors as a
            band, and its marker at a few of them.
        style: More of matplotlib's style.
    """

    label: str | None
    colour: str
    x: Any
    y: Any
    fmt: str = "o"
    style: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, axes: Axes) -> None:
        """Draw it."""
        x, xerr = _with_errors(self.x)
        y, yerr = _with_errors(self.y)
        style = {"elinewidth": 1, "capsize": 2.5} | dict(self.style)
        fmt = self.fmt
        if "-" in fmt and len(y) > FEW_POINTS and yerr is not None:
            band: Any = {"color": self.colour, "alpha": 0.16, "linewidth": 0}
            axes.fill_between(x, y - yerr[0], y + yerr[1], **band)
            yerr = None
            distance = -(-len(y) // 8)
            place = max(MARKERS.find(fmt[-1]), 0) * distance // len(MARKERS)
            style["markevery"] = (place, distance)
        axes.errorbar(x, y, yerr, xerr, fmt, color=self.colour, label=self.label, **style)

    def table(self, x: str, y: str) -> pd.DataFrame:
        """What is drawn, under the labels of the axes."""
        columns = [
            {"of": self.label or ""} | _columns(x, at) | _columns(y, value)
            for at, value in zip(self.x, self.y, strict=True)
        ]
        return pd.DataFrame(columns)


def with_shapes(curves: Sequence[Series]) -> list[Series]:
    """Curves of one row, each with a marker of its own."""
    shapes = itertools.cycle(MARKERS)
    return [replace(curve, fmt=f"-{shape}") for curve, shape in zip(curves, shapes, strict=False)]


def _columns(name: str, value: Any) -> dict[str, float]:
    return value.columns(name) if isinstance(value, Estimate) else {name: value}


def _with_errors(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    estimates = [value for value in values if isinstance(value, Estimate)]
    if not estimates:
        return np.array(values), None
    return np.array([estimate.value for estimate in estimates]), errors(estimates)


def errors(estimates: Iterable[Estimate]) -> np.ndarray:
    """(2, m) lengths of intervals below and above the values; 0 where none holds the value."""
    lengths = np.array([(e.value - e.ci_low, e.ci_high - e.value) for e in estimates]).T
    possible = np.isfinite(lengths) & (lengths >= 0)  # not so in a log that was edited
    return np.where(possible.all(0), lengths, 0.0)


def dashed(place: float, label: str, across: str = "y", dashes: Sequence[float] = (6, 2)) -> Mark:
    """A dashed line across an axis at one of its values."""
    style: Any = {"color": MUTED, "dashes": dashes, "linewidth": 1.2, "label": label}
    return lambda axes: (axes.axvline if across == "x" else axes.axhline)(place, **style)


@dataclass(frozen=True)
class Chart:
    """A figure of marks, with numbers at the ticks, faint lines, and a legend above.

    Attributes:
        x: Label of the horizontal axis, which all rows share.
        rows: What is drawn, by the label of its vertical axis, from top to bottom.
        height: Of the figure.
    """

    x: str
    rows: Mapping[str, Sequence[Mark]]
    height: int = 310

    def table(self) -> pd.DataFrame:
        """The numbers of its series."""
        tables = [
            mark.table(self.x, y)
            for y, marks in self.rows.items()
            for mark in marks
            if isinstance(mark, Series)
        ]
        return pd.concat(tables, ignore_index=True)

    def figure(self) -> Figure:
        """The figure; zero is marked on axes that have it."""
        with mpl.rc_context(STYLE):
            size = (WIDTH / DOTS, self.height / DOTS)
            figure = Figure(figsize=size, layout="constrained")
            panels = figure.subplots(len(self.rows), 1, squeeze=False, sharex=True)[:, 0]
            for axes, (y, marks) in zip(panels, self.rows.items(), strict=True):
                for mark in marks:
                    mark(axes)
                axes.tick_params(which="both", labelsize=11, colors=MUTED)  # made when drawn
                for axis, label, across in (
                    (axes.xaxis, self.x, axes.axvline),
                    (axes.yaxis, y, axes.axhline),
                ):
                    low, high = axis.get_view_interval()
                    if low < 0 < high and label not in ("", TRAINING_STEP):
                        across(0, color=MUTED, linewidth=0.8, zorder=0)
                    _furnish(axis, label)
                axes.grid(color=LINE, linewidth=0.8)
                axes.label_outer()
            if panels[0].get_legend_handles_labels()[1]:  # above it, where it covers nothing
                panels[0].legend(
                    loc="lower left",
                    bbox_to_anchor=(0, 1.0),
                    ncols=2,
                    frameon=False,
                    handlelength=1.6,
                    columnspacing=1.4,
                )
        return figure


def _furnish(axis: Any, label: str) -> None:
    """A label, and ticks with numbers."""
    axis.set_label_text(label)
    if axis.get_scale() != "linear":
        axis.set_major_formatter(lambda value, _: power_of_ten(value))
        axis.set_minor_formatter("")
    elif label:
        is_step = label == TRAINING_STEP
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=is_step))
        axis.set_major_formatter(lambda value, _: PAGE.number(value))


@dataclass(frozen=True)
class Bars:
    """Horizontal bars with their names, and whiskers at their ends.

    Attributes:
        label: Of the axis of numbers.
        estimates: By name, which is that of the same number of another run.
        starts: Where the bars begin.
        written: What is written at a bar in place of its name, with numbers of this run. It may
            begin with a name that has a colour of its own; other bars are coloured by sign.
        changes: Whether numbers are changes, whose signs have colours. Shares and correlations are
            not: a positive share of a fall is no rise.
        compared: What two runs are compared by, where bars depend on a setting that may differ;
            None for the bars.
    """

    label: str
    estimates: Mapping[str, Estimate]
    starts: Sequence[float] | float = 0.0
    written: Mapping[str, str] = field(default_factory=dict)
    changes: bool = True
    compared: Mapping[str, Estimate] | None = None

    @property
    def named(self) -> dict[str, Estimate]:
        """Estimates by what is written at them."""
        return {self.written.get(name, name): e for name, e in self.estimates.items()}

    def table(self) -> pd.DataFrame:
        """A row per estimate."""
        return rows_of(self.named)

    def figure(self) -> Figure:
        """The figure."""
        names = list(self.named)
        estimates = list(self.named.values())
        places = range(len(names))
        values = [estimate.value for estimate in estimates]
        of_orders = [OF_ORDERS.get(name.partition("  ")[0]) for name in names]
        style: Any = {
            "color": [
                hue or (by_sign(x) if self.changes else MUTED)
                for hue, x in zip(of_orders, values, strict=True)
            ],
            "xerr": errors(estimates),
            "error_kw": {"elinewidth": 1, "capsize": 2.5, "color": INK, "ecolor": INK},
        }
        marks: list[Mark] = [lambda axes: axes.barh(places, values, 0.56, self.starts, **style)]
        figure = Chart(self.label, {"": marks}, 90 + 30 * len(names)).figure()
        (axes,) = figure.axes
        axes.set_yticks(places, names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        return figure
