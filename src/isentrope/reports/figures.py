"""Figures of results as files of their own."""

from __future__ import annotations

from matplotlib.figure import Figure

from isentrope.reports.drawing import canvas, zero_lines
from isentrope.reports.palette import INK
from isentrope.reports.panels.change import draw_change
from isentrope.reports.sentences import bare, with_error
from isentrope.results.results import MeasureResult, TrialResult

MARKERS = "osD^v<>PX*hd8p"


def entropy_change_figure(result: MeasureResult) -> Figure:
    """ΔH(η) as measured and as predicted; below it ΔH/η, which is level where ΔH is linear."""
    figure, panels = canvas(500, rows=2, sharex=True, height_ratios=(3, 2))
    for power, (axes, label) in enumerate(zip(panels, ("ΔH", "ΔH/η"), strict=True)):
        draw_change(axes, result, power, f"{label} ({result.unit})")
    panels[0].set_xlabel("")
    panels[1].get_legend().remove()  # pyright: ignore[reportOptionalMemberAccess]
    _title(figure, f"{result.policy.name}: H = {with_error(result.at_theta)} {result.unit}")
    return figure


def trial_figure(result: TrialResult) -> Figure:
    """Entropy gained over vanilla against reward gained (or tokens touched), by part of step."""
    figure, panels = canvas(760, rows=2)
    titles = {"step": "whole step", "gradient": "gradient part alone"}
    for axes, (part, title) in zip(panels, titles.items(), strict=True):
        rewarded = "delta_j" in result.vanilla[part]
        zero_lines(axes, "xy")
        for k, control in enumerate(dict.fromkeys(e.control for e in result.tried.values())):
            tried = [entry for entry in result.tried.values() if entry.control == control]
            tried.sort(key=lambda entry: entry.strength)
            h = [entry.part(part)["gained_delta_h"] for entry in tried]
            j = [bare(entry.did.get("touched", 0.0), 0.0) for entry in tried]
            if rewarded:
                j = [entry.part(part)["gained_delta_j"] for entry in tried]
            axes.errorbar(
                [x.value for x in j],
                [x.value for x in h],
                xerr=[x.se for x in j],
                yerr=[x.se for x in h],
                marker=MARKERS[k % len(MARKERS)],
                markersize=4.5,
                linewidth=1,
                elinewidth=0.6,
                label=control,
            )
        axes.set_xlabel("ΔJ gained (reward)" if rewarded else "share of tokens touched")
        axes.set_ylabel(f"ΔH gained ({result.vanilla[part]['delta_h'].unit})")
        axes.set_title(title, fontsize=10.5, color=INK.light)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    _title(figure, f"{result.policy.name}: gained over vanilla in one step of η = {result.eta:.3g}")
    return figure


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, fontsize=11.5, color=INK.light)
