"""Figures of results as files of their own."""

from __future__ import annotations

from matplotlib.figure import Figure

from isentrope.reports.palette import INK
from isentrope.reports.panels.change import draw_change
from isentrope.reports.sentences import with_error
from isentrope.reports.svg import canvas, legend
from isentrope.results.results import MeasureResult


def entropy_change_figure(result: MeasureResult) -> Figure:
    """ΔH(η) as measured and as predicted; below it ΔH/η, which is level where ΔH is linear."""
    figure, (upper, lower) = canvas(500, rows=2, sharex=True, height_ratios=(3, 2))
    unit = result.unit
    for axes, power in ((upper, 0), (lower, 1)):
        draw_change(axes, result, power)
    upper.set_ylabel(f"ΔH ({unit})")
    lower.set_ylabel("ΔH/η")
    lower.set_xlabel("learning rate η")
    figure.suptitle(
        f"{result.policy.name}: H = {with_error(result.at_theta)} {unit}",
        fontsize=11.5,
        color=INK.light,
    )
    legend(upper)
    return figure
