"""Which past updates the momentum is made of: δH₁ of each, and what is not in them."""

from __future__ import annotations

import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import INK, by_sign
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement
from isentrope.reports.sentences import has_interval, number, with_interval
from isentrope.reports.svg import canvas, grid, zero_line
from isentrope.results.attributions import MomentumRecord
from isentrope.results.results import InfluenceResult

MOST = 24
"""Past updates that are drawn."""


def past_panel(influence: Measurement[InfluenceResult]) -> Panel | None:
    """The momentum by past update; None where it was not split."""
    past = influence.result.past
    if past is None or not past.steps:
        return None
    parts = {f"step_{step.step}": step.delta_h for step in past.steps}
    if past.before is not None:
        parts[f"before step_{past.steps[-1].step}"] = past.before.delta_h
    parts["not attributed"] = past.not_attributed.delta_h
    data = pd.DataFrame([{"part": name, **e.to_dict()} for name, e in parts.items()])
    figure, (axes,) = canvas(310)
    zero_line(axes)
    for step in past.steps[:MOST]:
        estimate = step.delta_h
        axes.bar(step.back, estimate.value, color=by_sign(estimate.value), width=0.8)
        if has_interval(estimate):
            axes.plot(
                [step.back] * 2, [estimate.ci_low, estimate.ci_high], color=INK.light, linewidth=1.2
            )
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("updates ago")
    axes.set_ylabel(f"part of δH₁ ({influence.result.entropy.unit})")
    axes.yaxis.set_major_formatter(lambda value, _: number(value, 2))
    grid(axes)
    return Panel(
        "past_updates",
        "Which past updates act through momentum",
        _caption(past, influence.result.entropy.momentum),
        influence.source("results.json", "momentum.parquet"),
        data,
        figure,
    )


def _caption(past: MomentumRecord, total: Estimate) -> str:
    rest = [f"{number(past.not_attributed.delta_h.value)} is not attributed"]
    if past.before is not None:
        earliest = f"step_{past.steps[-1].step}"
        rest.insert(0, f"{number(past.before.delta_h.value)} was there before {earliest}")
    half = f" Half of it is of the last {past.half} updates."
    where = "" if past.half is None else half
    whole = f"Momentum moves entropy by {with_interval(total)} {total.unit}"
    return f"{whole}.{where} Of that, {' and '.join(rest)}."
