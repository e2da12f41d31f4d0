"""What controls gain in one step: entropy against reward, one curve per control."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import INK
from isentrope.reports.rows import bare
from isentrope.reports.svg import canvas, zero_line
from isentrope.results.attributions import Tried
from isentrope.results.results import TrialResult

TITLES = {"step": "whole step", "gradient": "gradient part alone"}
MARKERS = "osD^v<>PX*hd8p"


def trial_figure(result: TrialResult) -> Figure:
    """Entropy gained over vanilla against reward gained (or tokens touched), by part of step."""
    figure, axes = canvas(760, rows=2)
    for place, (part, title) in zip(axes, TITLES.items(), strict=True):
        _draw(place, result, part)
        place.set_title(title, fontsize=10.5, color=INK.light)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    name, eta = result.policy.name, result.eta
    figure.suptitle(f"{name}: gained over vanilla in one step of η = {eta:.3g}", fontsize=11.5)
    return figure


def _draw(axes: Axes, result: TrialResult, part: str) -> None:
    rewarded = "delta_j" in result.vanilla[part]
    zero_line(axes)
    zero_line(axes, vertical=True)
    controls: dict[str, list[Tried]] = {}
    for entry in result.tried.values():
        controls.setdefault(entry.control, []).append(entry)
    for k, (control, entries) in enumerate(controls.items()):
        ordered = sorted(entries, key=lambda e: e.strength)
        h = [e.part(part)["gained_delta_h"] for e in ordered]
        j = [e.part(part)["gained_delta_j"] if rewarded else _touched(e) for e in ordered]
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
    unit = result.vanilla[part]["delta_h"].unit
    axes.set_xlabel("ΔJ gained (reward)" if rewarded else "share of tokens touched")
    axes.set_ylabel(f"ΔH gained ({unit})")


def _touched(entry: Tried) -> Estimate:
    return bare(entry.did.get("touched", 0.0), 0.0)
