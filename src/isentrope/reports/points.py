"""The values of a figure, by the places where they are drawn.

The page shows the value that is nearest to the pointer or a tap, or that the arrow keys lead to:
its name, its place on the axis, value and interval, in the units of the axes. Of values that are
closer to each other than a reader can point, the first is kept.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import DOTS, Bars, Chart, Series
from isentrope.reports.picture import Picture
from isentrope.results.answers.blocks import has_interval, short, with_interval

NEAREST = 3
"""Units of a figure in which one value is kept."""

MOST_CELLS = 200
"""Rows, and columns, of a picture whose cells are all read."""

Point = tuple[int, int, str, str]
"""Places across and down in the units of the SVG, and the texts of both values."""

PointGroup = tuple[str, str, str, list[Point]]
"""Words before, between and after the two values of a point, and the points."""


def point_values(drawn: Bars | Chart, figure: Figure) -> Markup:
    """What is read at the points of a figure.

    Args:
        drawn: What the figure shows.
        figure: The figure, saved before, so that the places of its axes are settled.

    Returns:
        JSON for a script element: whether each point stands for its row, groups of points, and
        pictures.
    """
    groups = list[PointGroup]()
    pictures = list[Mapping[str, Any]]()
    if isinstance(drawn, Bars):
        groups.append(_bars(drawn, figure.axes[0]))
    else:
        for axes, (y, marks) in zip(figure.axes, drawn.rows.items(), strict=True):
            groups += [_curve(mark, axes, drawn.x, y) for mark in marks if isinstance(mark, Series)]
            pictures += [_cells(m, axes, drawn.x, y) for m in marks if isinstance(m, Picture)]
    content = {"rows": isinstance(drawn, Bars), "groups": groups, "pictures": pictures}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _bars(bars: Bars, axes: Axes) -> PointGroup:
    """The ends of bars; a value that is written behind a name is not part of it."""
    quantity, unit = _name_and_unit(bars.label)
    names = [written.partition("  ")[0] for written in bars.named]
    estimates = list(bars.named.values())
    ends = np.array([estimate.value for estimate in estimates]) + bars.starts
    points = [
        (*place, names[row], _written(estimates[row]))
        for row, place in _places(axes, ends, np.arange(len(ends)), True)
    ]
    return "", f" · {quantity} ", unit, points


def _curve(curve: Series, axes: Axes, x: str, y: str) -> PointGroup:
    """The points of a curve; of a line one at each place across."""
    across, unit_across = _name_and_unit(x)
    quantity, unit = _name_and_unit(y)
    by_height = "-" not in curve.fmt
    points = [
        (*place, _written(curve.x[k]), _written(curve.y[k]))
        for k, place in _places(axes, _numbers(curve.x), _numbers(curve.y), by_height)
    ]
    name = f"{curve.label} · " if curve.label else ""
    return f"{name}{across} ", f"{unit_across} · {quantity} ", unit, points


def _cells(picture: Picture, axes: Axes, x: str, y: str) -> Mapping[str, Any]:
    """Hundredths of cosines with the corners of the picture; of a large one every k-th cell."""
    rows, columns = picture.cosines.shape
    stride = -(-max(rows, columns) // MOST_CELLS)
    hundredths = (100 * picture.cosines[::stride, ::stride]).round().astype(int)
    corners = _in_figure(axes, np.array([[-0.5, -0.5], [columns - 0.5, rows - 0.5]]))
    return {
        "names": [x, y],
        "corners": corners.round(1).tolist(),
        "shape": [rows, columns],
        "every": stride,
        "hundredths": hundredths.tolist(),
    }


def _name_and_unit(label: str) -> tuple[str, str]:
    """The name of a quantity, and a space and its unit if it has one."""
    name, bracket, unit = label.partition(" (")
    return name, f" {unit.removesuffix(')')}" if bracket else ""


def _numbers(entries: Sequence[Any]) -> np.ndarray:
    return np.array([e.value if isinstance(e, Estimate) else e for e in entries], dtype=float)


def _written(entry: Any) -> str:
    """A value, with its interval where an error is known at all."""
    if isinstance(entry, Estimate):
        return with_interval(entry) if entry.n or has_interval(entry) else short(entry.value)
    return short(float(entry), 4)


def _in_figure(axes: Axes, values: np.ndarray) -> np.ndarray:
    """(n, 2) places across and down in units of the SVG, of values on both axes."""
    pixels = axes.transData.transform(values)
    figure = axes.figure
    return np.column_stack([pixels[:, 0], figure.bbox.height - pixels[:, 1]]) * DOTS / figure.dpi


def _places(
    axes: Axes, x: np.ndarray, y: np.ndarray, by_height: bool
) -> list[tuple[int, tuple[int, int]]]:
    """Numbers of the points to be read, and their places in the figure.

    Args:
        axes: In which they are drawn.
        x: Values across.
        y: Values upward.
        by_height: Whether points at one place across are distinguished by their height.

    Returns:
        Pairs of a number and a place, in order.
    """
    places = _in_figure(axes, np.column_stack([x, y]))
    limits = np.column_stack([axes.get_xlim(), axes.get_ylim()])
    low, high = np.sort(_in_figure(axes, limits), 0)
    inside = np.isfinite(places).all(1)
    inside &= ((places >= low - 2) & (places <= high + 2)).all(1)
    indices = np.flatnonzero(inside)
    places = places[indices].round().astype(int)
    _, firsts = np.unique(places[:, : 1 + by_height] // NEAREST, axis=0, return_index=True)
    return [(int(indices[k]), (int(places[k, 0]), int(places[k, 1]))) for k in np.sort(firsts)]
