"""Figures of results as files of their own."""

from __future__ import annotations

from itertools import groupby

from matplotlib.figure import Figure

from isentrope.reports.drawing import canvas, chart, fill, points
from isentrope.reports.panels.change import change_marks
from isentrope.reports.sentences import bare, with_error
from isentrope.results.results import MeasureResult, TrialResult

MARKERS = "osD^v<>PX*hd8p"


def entropy_change_figure(result: MeasureResult) -> Figure:
    """ΔH(η) as measured and as predicted; below it ΔH/η, which is level where ΔH is linear."""
    figure, panels = canvas(500, rows=2, sharex=True, height_ratios=(3, 2))
    for power, (axes, label) in enumerate(zip(panels, ("ΔH", "ΔH/η"), strict=True)):
        marks, x = change_marks(result, power), "learning rate η" if power else ""
        fill(axes, x, f"{label} ({result.unit})", *marks, zero="y", columns=2)
    panels[1].get_legend().remove()  # pyright: ignore[reportOptionalMemberAccess]
    title = f"{result.policy.name}: H = {with_error(result.at_theta)} {result.unit}"
    figure.suptitle(title, fontsize=11.5)
    return figure


def trial_figure(result: TrialResult) -> Figure:
    """Entropy gained over vanilla against reward gained (or tokens touched), by control."""
    rewarded, marks = "delta_j" in result.vanilla["step"], []
    order = sorted(result.tried.values(), key=lambda entry: (entry.control, entry.strength))
    for k, (control, entries) in enumerate(groupby(order, lambda entry: entry.control)):
        tried = list(entries)
        gained = [entry.step["gained_delta_h"] for entry in tried]
        against = [bare(entry.did.get("touched", 0.0)) for entry in tried]
        if rewarded:
            against = [entry.step["gained_delta_j"] for entry in tried]
        style = {"fmt": f"-{MARKERS[k % len(MARKERS)]}", "linewidth": 1, "capsize": 0}
        marks.append(points(against, gained, f"C{k}", control, **style))
    x = "ΔJ gained (reward)" if rewarded else "share of tokens touched"
    y = f"ΔH gained ({result.vanilla['step']['delta_h'].unit})"
    figure = chart(x, y, *marks, height=480, zero="xy", grid="both")
    title = f"{result.policy.name}: gained over vanilla in one step of η = {result.eta:.3g}"
    figure.suptitle(title, fontsize=11.5)
    return figure
