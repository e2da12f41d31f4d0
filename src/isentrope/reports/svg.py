"""Figures for a page: vector graphics whose text stays text and whose colours follow the page.

A figure is WIDTH units wide, which is a column of the page on a desktop; on a phone it shrinks by a
fifth and can still be read. Identifiers carry the figure's name, so that two figures in one page do
not draw each other's shapes.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from isentrope.reports.palette import COLOURS, INK, LINE, MUTED, PAPER
from isentrope.reports.sentences import number
from isentrope.system.formatting import power_of_ten

WIDTH = 390
"""Of a figure, in units that are pixels at natural size."""

POINTS = 16 * WIDTH
"""Of a curve; the tables beside the figures have all of them."""

FIRST_IN_LEGEND = ("measured", "uneven weights", "fresh responses")
"""Labels that come before those of predictions and marks, whatever was drawn first."""

_DOTS = 72
"""Units an inch, as the format has it."""

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
        figure = Figure(figsize=(WIDTH / _DOTS, height / _DOTS), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03)  # pyright: ignore
        panels = figure.subplots(rows, 1, squeeze=False, **options)  # pyright: ignore
        for axes in panels[:, 0]:  # ticks are made when they are drawn, by the style of then
            axes.tick_params(which="both", labelsize=STYLE["xtick.labelsize"], colors=MUTED.light)
    return figure, list(panels[:, 0])


def zero_line(axes: Axes, *, vertical: bool = False) -> None:
    """The line at which nothing changes."""
    draw = axes.axvline if vertical else axes.axhline
    draw(0, color=MUTED.light, linewidth=0.8, zorder=0)


def named_rows(axes: Axes, places: Any, names: Any, label: str) -> None:
    """Rows from top to bottom with their names, over an axis of numbers."""
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(label)
    grid(axes, "x")


def powers(axes: Axes, which: str = "x") -> None:
    """Tick labels of a logarithmic axis as 10⁻³, in plain characters."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    axis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def legend(axes: Axes, columns: int = 2) -> None:
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


def svg_file(figure: Figure, name: str) -> bytes:
    """A figure as a file of its own.

    Args:
        figure: The figure.
        name: Its name; the same name gives the same bytes.

    Returns:
        SVG.
    """
    for axes in figure.axes:
        for line in axes.lines:
            _thin(line)
    buffer = io.BytesIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _thin(line: Line2D) -> None:
    """Of a long curve keep the extremes of each eighth of a unit: more of it cannot be seen."""
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    if len(x) <= POINTS or not (np.diff(x) >= 0).all():
        return
    low, high = np.where(np.isnan(y), np.inf, y), np.where(np.isnan(y), -np.inf, y)
    parts = np.array_split(np.arange(len(x)), POINTS // 2)
    kept = np.unique([i for p in parts for i in (p[low[p].argmin()], p[high[p].argmax()])])
    line.set_data(x[kept], y[kept])


def png_file(figure: Figure) -> bytes:
    """A figure as pixels, for slides."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=2 * _DOTS)
    return buffer.getvalue()


def inline(svg: bytes, name: str, says: str) -> str:
    """A figure for the body of a page.

    Args:
        svg: The file.
        name: Prefix of its identifiers, used once in a page.
        says: What is seen, for those who hear the page.

    Returns:
        An svg element whose colours are those of the page's scheme.
    """
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid="|"#|url\(#)', rf"\g<1>{name}-", text)
    text = _without_size(text, says)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for colour in COLOURS:
        text = text.replace(colour.light, f"var(--{colour.name})")
    return text


def _without_size(text: str, says: str) -> str:
    """The opening tag with its box alone: the page decides how wide it is."""
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    words = says.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box.group(1)}" role="img" aria-label="{words}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)


def grid(axes: Axes, which: str = "y") -> None:
    """Faint lines to read values by."""
    axes.grid(axis=which, color=LINE.light, linewidth=0.8)  # pyright: ignore
    axes.set_axisbelow(True)
