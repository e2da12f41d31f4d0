"""The study over checkpoints: how the step, its parts and its kernel change along training.

A point is one measurement; repeats at a checkpoint stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import STEP, canvas, frame, points, zero_lines
from isentrope.reports.palette import FIRST, INK, LOSS, MEASURED, MUTED, SECOND, Colour
from isentrope.reports.panel import Panel, Source
from isentrope.reports.panels.kernel import MOVED, OWN, block_of
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import (
    bare,
    estimate_in,
    has_interval,
    with_error,
    with_interval,
    without_error,
)
from isentrope.results.result import Result
from isentrope.results.results import AuditResult, KernelResult, MeasureResult
from isentrope.system.formatting import known

Pick = Callable[[Any], Estimate | None]
"""From a result to an Estimate, or None."""


@dataclass(frozen=True)
class Study:
    """One question that two checkpoints answer.

    Attributes:
        key: Of the panel.
        title: Of the panel.
        kind: Of the results.
        label: Of the vertical axis.
        series: What is picked from a result, and its colour, by name.
        ratio: Whether it is a ratio, whose mean and standard error mean nothing.
    """

    key: str
    title: str
    kind: type[Result]
    label: str
    series: dict[str, tuple[Pick, Colour]]
    ratio: bool = False


def study_panels(reading: Reading) -> Iterator[Panel]:
    """One panel per question that two checkpoints answer, from the change to the proxies."""
    for study in STUDIES:
        every = reading.measurements[study.kind].values()
        measurements = [m for m in every if m.step is not None]
        rows = [
            {"checkpoint": m.name, "step": m.step, "quantity": name} | estimate.columns()
            for name, (pick, _) in study.series.items()
            for m in measurements
            if (estimate := pick(m.result)) is not None and not math.isnan(estimate.value)
        ]
        data = pd.DataFrame(rows)
        if len(data) and data["step"].nunique() > 1:
            verb, pattern = study.kind.verb, reading.folder / "measurements"
            command = f"isentrope {verb} CONFIG --out FOLDER, with each config.yaml of {pattern}"
            files = tuple(m.source().files[0] for m in measurements)
            made_with = measurements[0].result.provenance
            yield _panel(study, data, Source(f"{command}/{verb}_*", files, made_with))


def _panel(study: Study, data: pd.DataFrame, source: Source) -> Panel:
    figure, (axes,) = canvas(270)
    names = list(dict.fromkeys(data["quantity"]))
    apart = 0.012 * (data["step"].max() - data["step"].min())
    for place, name in enumerate(names):
        style = {"fmt": "osD"[place % 3], "label": name, "colour": study.series[name][1]}
        shift = (place - (len(names) - 1) / 2) * apart
        _draw(axes, data[data["quantity"] == name], shift, study.ratio, **style)
    if (data["value"] < 0).any():
        zero_lines(axes)
    frame(axes, STEP, study.label)
    chosen = data[data["quantity"] == names[0]]
    first, last = chosen.iloc[0], chosen.iloc[-1]
    short = without_error if study.ratio else with_error
    ends = (estimate_in(first), estimate_in(last))
    start, end = (with_interval(e) if has_interval(e) else short(e) for e in ends)
    caption = (
        f"{names[0][0].upper()}{names[0][1:]} went from {start} at {first['checkpoint']} to {end} "
        f"at {last['checkpoint']}."
    )
    return Panel(study.key, study.title, caption, source, data, figure)


def _draw(axes: Axes, rows: pd.DataFrame, shift: float, ratio: bool, **style: Any) -> None:
    """Points with intervals, or else one standard error, and a line through their means."""
    if not ratio or rows["step"].is_unique:
        means = rows.groupby("step")["value"].mean()
        axes.plot(means.index + shift, means, color=style["colour"].light, linewidth=1, alpha=0.6)
    se = rows["se"].astype(float)
    low = (rows["value"] - rows["ci_low"].astype(float)).fillna(se)
    high = (rows["ci_high"].astype(float) - rows["value"]).fillna(se)
    points(axes, rows["step"] + shift, rows["value"], yerr=(low, high), capsize=0, **style)


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


def _block(names: tuple[str, ...], *path: str) -> Pick:
    """What the first of these blocks has at the end of a path of fields and keys."""

    def pick(result: KernelResult) -> Estimate | None:
        value: Any = block_of(result, names)[1]
        for name in path:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        return value

    return pick


def _spearman(proxy: str) -> Pick:
    return lambda result: result.tokens.proxies.get(proxy, {}).get("spearman")


STUDIES = (
    Study(
        "study_change",
        "The step along training",
        MeasureResult,
        "ΔH",
        {"measured": (_at_rate, MEASURED), "first order": (_predicted, FIRST)},
    ),
    Study(
        "study_budget",
        "Who decided the step",
        MeasureResult,
        "δH₁ per η",
        {
            "momentum": (_part("momentum"), MUTED),
            "gradient": (_part("gradient"), INK),
            "total": (_part("total"), FIRST),
        },
    ),
    Study(
        "study_range",
        "How far first order reaches",
        MeasureResult,
        "η/η*",
        {"training rate over η*": (_fraction, SECOND)},
        ratio=True,
    ),
    Study(
        "study_kernel",
        "How alike responses are",
        KernelResult,
        "rms cosine",
        {
            "same prompt": (_block(OWN, "structure", "same_prompt", "rms_cosine"), MEASURED),
            "other prompts": (_block(OWN, "structure", "cross_prompt", "rms_cosine"), MUTED),
            "E × U": (_block(MOVED, "structure", "cross_prompt", "rms_cosine"), INK),
        },
    ),
    Study(
        "study_rank",
        "Directions of the batch",
        KernelResult,
        "effective rank",
        {
            "effective rank": (_block(OWN, "spectrum", "effective_rank"), MEASURED),
            "E × U": (_block(MOVED, "singular", "effective_rank"), INK),
        },
    ),
    Study(
        "study_kernel_form",
        "What the kernel says of the step",
        KernelResult,
        "δH₁ of the gradient",
        {
            "kernel form": (_block(MOVED, "delta_h", "kernel"), MEASURED),
            "forward mode": (_block(MOVED, "delta_h", "forward_mode"), FIRST),
        },
    ),
    Study(
        "study_audit",
        "Proxies along training",
        AuditResult,
        "rank correlation",
        {
            "token covariance": (_spearman("token_covariance"), MEASURED),
            "S* × advantage": (_spearman("discriminator"), INK),
            "surprisal × A": (_spearman("surprisal_advantage"), LOSS),
        },
    ),
)
