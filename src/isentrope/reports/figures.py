"""Figures of results as files of their own, drawn from the content of results.json alone."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from isentrope.reports.palette import INK
from isentrope.reports.panels.change import draw_change
from isentrope.reports.sentences import with_error
from isentrope.reports.svg import canvas, legend


def entropy_change_figure(results: dict[str, Any]) -> Figure:
    """ΔH(η) as measured and as predicted; below it ΔH/η, which is level where ΔH is linear.

    Args:
        results: The content of results.json of `measure`.

    Returns:
        A figure to be saved.
    """
    figure, (upper, lower) = canvas(500, rows=2, sharex=True, height_ratios=(3, 2))
    unit = results["estimator"]["unit"]
    for axes, power in ((upper, 0), (lower, 1)):
        draw_change(axes, results, power)
    upper.set_ylabel(f"ΔH ({unit})")
    lower.set_ylabel("ΔH/η")
    lower.set_xlabel("learning rate η")
    entropy = results["entropy"][results["estimator"]["functional"]]
    figure.suptitle(
        f"{results['policy']['name']}: H = {with_error(entropy)} {unit}",
        fontsize=11.5,
        color=INK.light,
    )
    legend(upper)
    return figure
