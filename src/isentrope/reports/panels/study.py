"""The study over checkpoints: how the step, its parts and its kernel change along training.

A point is one measurement; repeats at a checkpoint stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from isentrope.reports.palette import FIRST, INK, LOSS, MEASURED, MUTED, SECOND
from isentrope.reports.panel import Panel, Source
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import at_training_rate, change_at, records
from isentrope.reports.sentences import (
    has_interval,
    number,
    with_error,
    with_interval,
    without_error,
)
from isentrope.reports.svg import canvas, grid, legend, zero_line

Pick = Callable[[dict[str, Any]], Any]
"""From the content of results.json to an Estimate, or None."""


def study_panels(reading: Reading) -> list[Panel]:
    """One panel a question, where at least two checkpoints answer it.

    Args:
        reading: The run.

    Returns:
        The change and its linear range, budget, kernel, proxies.
    """
    panels = [
        _panel(reading, "measure", "study_change", "The step along training", CHANGE, "ΔH"),
        _panel(reading, "measure", "study_budget", "Who decided the step", BUDGET, "δH₁ per η"),
        _panel(reading, "measure", "study_range", "How far first order reaches", RANGE, "η/η*"),
        _panel(reading, "kernel", "study_kernel", "How alike responses are", KERNEL, "rms cosine"),
        _panel(reading, "kernel", "study_rank", "Directions of the batch", RANK, "effective rank"),
        _panel(
            reading, "audit", "study_audit", "Proxies along training", AUDIT, "rank correlation"
        ),
    ]
    return [panel for panel in panels if panel is not None]


def _panel(
    reading: Reading,
    verb: str,
    key: str,
    title: str,
    series: dict[str, tuple[Pick, str]],
    label: str,
) -> Panel | None:
    measurements = [m for m in reading.measurements[verb].values() if m.step is not None]
    rows = [_row(m, name, pick) for name, (pick, _) in series.items() for m in measurements]
    data = pd.DataFrame([row for row in rows if row is not None])
    if not len(data) or data["step"].nunique() < 2:
        return None
    figure, (axes,) = canvas(270)
    names = [name for name in series if name in set(data["quantity"])]
    for place, name in enumerate(names):
        shift = (place - (len(names) - 1) / 2) * 0.012 * (data["step"].max() - data["step"].min())
        style = {"color": series[name][1], "marker": "osD"[place % 3], "label": name}
        _draw(axes, data[data["quantity"] == name], style, shift)
    if (data["value"] < 0).any() or label == "rank correlation":
        zero_line(axes)
    axes.set_xlabel("training step")
    axes.set_ylabel(label)
    axes.set_xticks(_apart(sorted(data["step"].unique())))
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    grid(axes)
    legend(axes)
    return Panel(
        key, title, _caption(data, names[0]), _source(reading, verb, measurements), data, figure
    )


def _apart(steps: list[int]) -> list[int]:
    """Those of the steps whose labels have room beside each other, the last among them."""
    room, kept = 0.12 * (steps[-1] - steps[0]), [steps[-1]]
    for step in reversed(steps[:-1]):
        if kept[-1] - step >= room:
            kept.append(step)
    return kept[::-1]


def _row(measurement: Measurement, name: str, pick: Pick) -> dict[str, Any] | None:
    estimate = pick(measurement.results)
    if estimate is None or estimate.get("value") is None:
        return None
    numbers = {key: estimate.get(key) for key in ("value", "se", "ci_low", "ci_high")}
    return {"checkpoint": measurement.name, "step": measurement.step, "quantity": name, **numbers}


def _draw(axes: Axes, rows: pd.DataFrame, style: dict[str, Any], shift: float) -> None:
    colour = style["color"]
    means = rows.groupby("step")["value"].mean()
    axes.plot(means.index + shift, means, color=colour, linewidth=1, alpha=0.6)
    se = rows["se"].astype(float)
    low = rows["ci_low"].astype(float).fillna(rows["value"] - se)
    high = rows["ci_high"].astype(float).fillna(rows["value"] + se)
    axes.vlines(rows["step"] + shift, low, high, color=colour, linewidth=1.4)
    axes.plot(rows["step"] + shift, rows["value"], linestyle="", ms=5, **style)


def _caption(data: pd.DataFrame, name: str) -> str:
    found = data[data["quantity"] == name].astype(object)
    rows = records(found.where(found.notna(), None))
    first, last = rows[0], rows[-1]
    bare = without_error if name in RANGE else with_error
    start, end = (with_interval(row) if has_interval(row) else bare(row) for row in (first, last))
    return (
        f"{name[0].upper()}{name[1:]} went from {start} at {first['checkpoint']} to {end} at "
        f"{last['checkpoint']}."
    )


def _source(reading: Reading, verb: str, measurements: list[Measurement]) -> Source:
    files = tuple(str(m.folder / "results.json") for m in measurements)
    pattern = reading.folder / "measurements" / f"{verb}_*"
    command = f"isentrope {verb} CONFIG --out FOLDER, with each config.yaml of {pattern}"
    return Source(command, files, measurements[0].results.get("provenance", {}))


def _at_rate(results: dict[str, Any]) -> Any:
    row = at_training_rate(results)
    return None if row is None else change_at(row, results["estimator"]["unit"])


def _told(results: dict[str, Any]) -> Any:
    row = at_training_rate(results)
    if row is None or row["deltaH_approx"] is None:
        return None
    return {"value": row["deltaH_approx"], "se": row["deltaH_approx_se"]}


def _part(name: str) -> Pick:
    def pick(results: dict[str, Any]) -> Any:
        budget = results.get("budget") or {}
        return {"value": budget.get(name), "se": budget.get(f"{name}_se")}

    return pick


def _fraction(results: dict[str, Any]) -> Any:
    """η/η*, whose interval is that of η* turned over; an infinite end becomes zero."""
    reach = results.get("linear_range")
    if reach is None or not reach.get("rate_over_range"):
        return None
    ratio = reach["rate_over_range"]
    rate, (low, high) = ratio * reach["value"], (reach.get("ci_low"), reach.get("ci_high"))
    if low is None:
        return {"value": ratio}
    return {
        "value": ratio,
        "ci_low": 0.0 if high is None else rate / high,
        "ci_high": rate / low if low else None,
    }


def _relation(name: str) -> Pick:
    def pick(results: dict[str, Any]) -> Any:
        structure = _block(results).get("structure") or {}
        return (structure.get(name) or {}).get("rms_cosine")

    return pick


def _block(results: dict[str, Any]) -> dict[str, Any]:
    blocks = results["blocks"]
    return blocks.get("UU") or blocks.get("EE") or {}


def _spearman(proxy: str) -> Pick:
    return lambda results: (results["tokens"]["proxies"].get(proxy) or {}).get("spearman")


CHANGE: dict[str, tuple[Pick, str]] = {
    "measured": (_at_rate, MEASURED.light),
    "first order": (_told, FIRST.light),
}
BUDGET: dict[str, tuple[Pick, str]] = {
    "momentum": (_part("momentum"), MUTED.light),
    "gradient": (_part("gradient"), INK.light),
    "total": (_part("total"), FIRST.light),
}
RANGE: dict[str, tuple[Pick, str]] = {"training rate over η*": (_fraction, SECOND.light)}
KERNEL: dict[str, tuple[Pick, str]] = {
    "same prompt": (_relation("same_prompt"), MEASURED.light),
    "other prompts": (_relation("cross_prompt"), MUTED.light),
}
RANK: dict[str, tuple[Pick, str]] = {
    "effective rank": (
        lambda results: (_block(results).get("spectrum") or {}).get("effective_rank"),
        MEASURED.light,
    )
}
AUDIT: dict[str, tuple[Pick, str]] = {
    "token covariance": (_spearman("token_covariance"), MEASURED.light),
    "S* × advantage": (_spearman("discriminator"), INK.light),
    "surprisal × A": (_spearman("surprisal_advantage"), LOSS.light),
}
