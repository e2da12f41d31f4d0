"""The study over checkpoints: how the step, its parts and its kernel change along training.

A point is one measurement; repeats at a checkpoint stand side by side.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import FIRST, INK, LOSS, MEASURED, MUTED, SECOND, STEP, chart, points
from isentrope.reports.panel import Panel, Source, bare, estimates_in, from_to
from isentrope.reports.panels.kernel import MOVED, OWN, block_of
from isentrope.reports.read_run import Reading
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
    """

    key: str
    title: str
    kind: type[Result]
    label: str
    series: dict[str, tuple[Pick, str]]


def study_panels(reading: Reading) -> Iterator[Panel]:
    """One panel per question that two checkpoints answer, from the change to the proxies."""
    for study in STUDIES:
        found = reading.measurements[study.kind].values()
        measurements = [m for m in found if m.step is not None]
        rows = [
            {"checkpoint": m.name, "step": m.step, "quantity": name} | estimate.columns()
            for name, (pick, _) in study.series.items()
            for m in measurements
            if (estimate := pick(m.result)) is not None and not math.isnan(estimate.value)
        ]
        data = pd.DataFrame(rows)
        if len(data) and data["step"].nunique() > 1:
            verb, every = study.kind.verb, reading.folder / "measurements"
            command = f"isentrope {verb} CONFIG --out FOLDER, with each config.yaml of {every}"
            sources = [m.source() for m in measurements]
            files = tuple(file for source in sources for file in source.files)
            source = replace(sources[0], command=f"{command}/{verb}_*", files=files)
            yield _panel(study, data, source)


def _panel(study: Study, data: pd.DataFrame, source: Source) -> Panel:
    marks, ends = [], []
    apart = 0.012 * (data["step"].max() - data["step"].min())
    for place, (name, (_, colour)) in enumerate(study.series.items()):
        rows = data[data["quantity"] == name]
        if len(rows):
            steps, estimates = rows["step"] + place * apart, estimates_in(rows)
            style = {"fmt": f"-{'osD'[place]}", "linewidth": 1, "capsize": 0}
            marks.append(points(steps, estimates, colour, name, **style))
            ends.append(f"{name} {from_to(estimates)}")
    caption = f"From {data['checkpoint'].iloc[0]} to {data['checkpoint'].iloc[-1]}: {ends[0]}."
    zero = "y" if (data["value"] < 0).any() else ""
    figure = chart(STEP, study.label, *marks, height=270, zero=zero, columns=2)
    return Panel(study.key, study.title, caption, source, data, figure)


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
    rate, low = fraction.value * reach.value, known(reach.ci_low)
    if low is None:
        return fraction
    above = rate / low if low else math.nan
    return replace(fraction, ci_low=rate / (known(reach.ci_high) or math.inf), ci_high=above)


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
