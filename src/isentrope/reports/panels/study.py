"""The study over checkpoints: how the step, its parts and its kernel change along training.

A point is one measurement; repeats at a checkpoint stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import FIRST, INK, LOSS, MEASURED, MUTED, SECOND
from isentrope.reports.panel import Panel, Source
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import Row, bare, columns_of, estimate_in
from isentrope.reports.sentences import (
    has_interval,
    number,
    with_error,
    with_interval,
    without_error,
)
from isentrope.reports.svg import canvas, grid, legend, zero_line
from isentrope.results.kernel import BlockRecord
from isentrope.results.result import Result
from isentrope.results.results import AuditResult, KernelResult, MeasureResult
from isentrope.system.formatting import known

Pick = Callable[[Any], Estimate | None]
"""From a result of the panel's verb to an Estimate, or None."""


COSINE, DIRECTIONS, CORRELATION = "rms cosine", "effective rank", "rank correlation"


def study_panels(reading: Reading) -> list[Panel]:
    """One panel per question that two checkpoints answer, from the change to the proxies."""
    panels = [
        _panel(reading, MeasureResult, "study_change", "The step along training", CHANGE, "ΔH"),
        _panel(reading, MeasureResult, "study_budget", "Who decided the step", BUDGET, "δH₁ per η"),
        _panel(reading, MeasureResult, "study_range", "How far first order reaches", RANGE, "η/η*"),
        _panel(
            reading, KernelResult, "study_kernel", "How alike responses are", KERNEL, "rms cosine"
        ),
        _panel(
            reading, KernelResult, "study_rank", "Directions of the batch", RANK, "effective rank"
        ),
        _panel(
            reading,
            KernelResult,
            "study_kernel_form",
            "What the kernel says of the step",
            FORM,
            "δH₁ of the gradient",
        ),
        _panel(
            reading, AuditResult, "study_audit", "Proxies along training", AUDIT, "rank correlation"
        ),
    ]
    return [panel for panel in panels if panel is not None]


def _panel(
    reading: Reading,
    kind: type[Result],
    key: str,
    title: str,
    series: dict[str, tuple[Pick, str]],
    label: str,
) -> Panel | None:
    measurements = [m for m in reading.of(kind) if m.step is not None]
    rows = [_row(m, name, pick) for name, (pick, _) in series.items() for m in measurements]
    data = pd.DataFrame([row for row in rows if row is not None])
    if not len(data) or data["step"].nunique() < 2:
        return None
    figure, (axes,) = canvas(270)
    names = [name for name in series if name in set(data["quantity"])]
    for place, name in enumerate(names):
        shift = (place - (len(names) - 1) / 2) * 0.012 * (data["step"].max() - data["step"].min())
        colour, marker = series[name][1], "osD"[place % 3]
        _draw(axes, data[data["quantity"] == name], shift, colour, marker=marker, label=name)
    if (data["value"] < 0).any() or label == CORRELATION:
        zero_line(axes)
    axes.set_xlabel("training step")
    axes.set_ylabel(label)
    axes.set_xticks(_apart(sorted(data["step"].unique())))
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    grid(axes)
    legend(axes)
    return Panel(
        key,
        title,
        _caption(data, names[0]),
        _source(reading, kind.verb, measurements),
        data,
        figure,
    )


def _apart(steps: list[int]) -> list[int]:
    """Those of the steps whose labels have room beside each other, the last among them."""
    room, kept = 0.12 * (steps[-1] - steps[0]), [steps[-1]]
    for step in reversed(steps[:-1]):
        if kept[-1] - step >= room:
            kept.append(step)
    return kept[::-1]


def _row(measurement: Measurement[Any], name: str, pick: Pick) -> Row | None:
    estimate = pick(measurement.result)
    if estimate is None or math.isnan(estimate.value):
        return None
    place = {"checkpoint": measurement.name, "step": measurement.step, "quantity": name}
    return place | columns_of(estimate)


def _draw(axes: Axes, rows: pd.DataFrame, shift: float, colour: str, **style: Any) -> None:
    if style["label"] not in RANGE or rows["step"].is_unique:  # no line through a mean of ratios
        means = rows.groupby("step")["value"].mean()
        axes.plot(means.index + shift, means, color=colour, linewidth=1, alpha=0.6)
    se = rows["se"].astype(float)
    low = rows["ci_low"].astype(float).fillna(rows["value"] - se)
    high = rows["ci_high"].astype(float).fillna(rows["value"] + se)
    axes.vlines(rows["step"] + shift, low, high, color=colour, linewidth=1.4)
    axes.plot(rows["step"] + shift, rows["value"], linestyle="", ms=5, color=colour, **style)


def _caption(data: pd.DataFrame, name: str) -> str:
    chosen = data[data["quantity"] == name]
    first, last = chosen.iloc[0], chosen.iloc[-1]
    short = without_error if name in RANGE else with_error
    ends = (estimate_in(first), estimate_in(last))
    start, end = (with_interval(e) if has_interval(e) else short(e) for e in ends)
    return (
        f"{name[0].upper()}{name[1:]} went from {start} at {first['checkpoint']} to {end} at "
        f"{last['checkpoint']}."
    )


def _source(reading: Reading, verb: str, measurements: list[Measurement[Any]]) -> Source:
    files = tuple(m.source().files[0] for m in measurements)
    pattern = reading.folder / "measurements" / f"{verb}_*"
    command = f"isentrope {verb} CONFIG --out FOLDER, with each config.yaml of {pattern}"
    return Source(command, files, measurements[0].result.provenance)


def _at_rate(result: MeasureResult) -> Estimate | None:
    row = result.at_rate()
    return None if row is None else result.change_at(row)


def _predicted(result: MeasureResult) -> Estimate | None:
    row = result.at_rate()
    return None if row is None else bare(row.first_order, row.first_order_se)


def _part(name: str) -> Pick:
    def pick(result: MeasureResult) -> Estimate | None:
        part = result.part(name)
        return None if part is None else bare(part.value, part.se)

    return pick


def _fraction(result: MeasureResult) -> Estimate | None:
    """η/η*, whose interval is that of η* turned over; an infinite end becomes zero."""
    reach = result.linear_range
    if reach is None or not reach.rate_over_range:
        return None
    fraction = bare(reach.rate_over_range)
    rate, (low, high) = fraction.value * reach.value, (known(reach.ci_low), known(reach.ci_high))
    if low is None:
        return fraction
    ends = (0.0 if high is None else rate / high, rate / low if low else math.nan)
    return replace(fraction, ci_low=ends[0], ci_high=ends[1])


def _relation(name: str) -> Pick:
    def pick(result: KernelResult) -> Estimate | None:
        block = _block(result)
        relation = (block.structure or {}).get(name) if block else None
        return relation.rms_cosine if relation else None

    return pick


def _block(result: KernelResult) -> BlockRecord | None:
    return result.blocks.get("UU") or result.blocks.get("EE")


def _update(result: KernelResult) -> BlockRecord | None:
    """How the update moves other responses: E × U, or fresh responses with U."""
    return result.blocks.get("EU") or result.blocks.get("FU")


def _other_prompts(result: KernelResult) -> Estimate | None:
    block = _update(result)
    relation = (block.structure or {}).get("cross_prompt") if block else None
    return relation.rms_cosine if relation else None


def _rank_of_update(result: KernelResult) -> Estimate | None:
    block = _update(result)
    return block.singular.effective_rank if block and block.singular else None


def _kernel_form(result: KernelResult) -> Estimate | None:
    block = _update(result)
    return block.delta_h.kernel if block and block.delta_h else None


def _forward_mode(result: KernelResult) -> Estimate | None:
    block = _update(result)
    return block.delta_h.forward_mode if block and block.delta_h else None


def _rank(result: KernelResult) -> Estimate | None:
    block = _block(result)
    return block.spectrum.effective_rank if block and block.spectrum else None


def _spearman(proxy: str) -> Pick:
    def pick(result: AuditResult) -> Estimate | None:
        return result.tokens.proxies.get(proxy, {}).get("spearman")

    return pick


CHANGE: dict[str, tuple[Pick, str]] = {
    "measured": (_at_rate, MEASURED.light),
    "first order": (_predicted, FIRST.light),
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
    "E × U": (_other_prompts, INK.light),
}
RANK: dict[str, tuple[Pick, str]] = {
    "effective rank": (_rank, MEASURED.light),
    "E × U": (_rank_of_update, INK.light),
}
FORM: dict[str, tuple[Pick, str]] = {
    "kernel form": (_kernel_form, MEASURED.light),
    "forward mode": (_forward_mode, FIRST.light),
}
AUDIT: dict[str, tuple[Pick, str]] = {
    "token covariance": (_spearman("token_covariance"), MEASURED.light),
    "S* × advantage": (_spearman("discriminator"), INK.light),
    "surprisal × A": (_spearman("surprisal_advantage"), LOSS.light),
}
