"""Where the change comes from: the budget of one step as a waterfall.

    ηδH₁ = momentum + decay + gradient,     ΔH(η) = ηδH₁ + η²δH₂ + the rest

at the training rate η; how the gradient's part splits by prompt, which is measured on other
responses (fresh ones to U's prompts); and which past updates the momentum is made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import bars, canvas, frame, points, reach, zero_lines
from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, SECOND, by_sign
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.sentences import Row, number, with_interval
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import listed, percent

PARTS = ("momentum", "decay", "gradient", "control")

RELATIONS = {
    "itself": "the response itself",
    "same_prompt": "same prompt",
    "other_prompt": "other prompts",
    "gradient": "together",
}

MOST = 24
"""Past updates that are drawn."""


def parts_of(reading: Reading) -> tuple[Measurement[Any], dict[str, Estimate]] | None:
    """δH₁ per unit η of each part of the step and "total", and what it was read from."""
    measured, influence = reading.shown(MeasureResult), reading.shown(InfluenceResult)
    if measured is not None and measured.result.part("total") is not None:
        parts = {name: measured.result.part(name) for name in (*PARTS, "total")}
        return measured, {name: part for name, part in parts.items() if part is not None}
    if influence is not None:
        names = ("momentum", "decay", "gradient", "total")
        return influence, {name: getattr(influence.result.entropy, name) for name in names}
    return None


def waterfall(reading: Reading) -> Iterator[Panel]:
    """The parts, their sum, and of `measure` what lies beyond first order."""
    found = parts_of(reading)
    if found is None:
        return
    measurement, parts = found
    result, total = measurement.result, parts["total"]
    beyond = isinstance(result, MeasureResult)
    rate, unit = 1.0, result.unit if beyond else result.entropy.unit
    title = "From momentum to the first order, per unit η"
    if beyond:
        rate = result.rate or 1.0
        title = f"From momentum to what is measured, at η = {number(rate)}"
    names = [name for name in PARTS if name in parts]
    steps = [_step(name, parts[name].value * rate, parts[name].se * rate) for name in names]
    first = total.value * rate
    terms = [
        f"{step['name']} {number(step['value'])} ({percent(step['value'] / first)})"
        for step in steps
        if abs(step["value"]) > 0.0005 * abs(first) > 0
    ]
    caption = (
        f"First order {number(first)} {unit} is {listed(terms)}." if terms else "Nothing moved."
    )
    steps.append(_step("first order", first, total.se * rate, "first"))
    if beyond:
        steps += _beyond_first(result, first)
    data = pd.DataFrame(steps)
    quantities = {f"{name} part of δH₁": (parts[name], f"budget.{name}") for name in names}
    numbers, influences = measurement.compared(quantities)
    yield Panel(
        "budget",
        title,
        caption,
        measurement.source(),
        data,
        _draw(data, f"ΔH ({unit})" if beyond else unit),
        numbers=numbers,
        influences=influences,
    )


def _step(name: str, value: float, se: float = math.nan, kind: str = "part") -> Row:
    return {"name": name, "value": value, "se": se, "kind": kind}


def _beyond_first(result: MeasureResult, first: float) -> list[Row]:
    """Second order, what is left, and what was measured; nothing where they are not known."""
    row = result.at_rate()
    if row is None or math.isnan(row.second_order):
        return []
    change = result.change_at(row)
    rest, se = change.value - (first + row.second_order), math.nan
    if math.isfinite(row.residual) and row.resampled is None:
        rest = row.residual
        se = row.residual_se if row.residual_verdict in (None, "trust") else math.nan
    return [
        _step("second order", row.second_order, row.second_order_se, "second"),
        _step("the rest", rest, se),
        _step("measured", change.value, change.se, "measured"),
    ]


def _draw(data: pd.DataFrame, label: str) -> Figure:
    """Bars from where the last one ended; totals start from zero. Whiskers are one se."""
    figure, (axes,) = canvas(300)
    values, ends, level = data["value"].to_numpy(), [], 0.0
    for value, kind in zip(values, data["kind"], strict=True):
        level = value if kind in ("first", "measured") else level + value
        ends.append(level)
    orders = {"first": FIRST.light, "second": SECOND.light, "measured": MEASURED.light}
    colours = [orders.get(k) or by_sign(x) for k, x in zip(data["kind"], values, strict=True)]
    whiskers = data["se"].where(data["se"] > 0)
    bars(axes, list(data["name"]), values, whiskers, label, left=ends - values, colours=colours)
    for k, (end, value) in enumerate(zip(ends, values, strict=True)):
        if k + 1 < len(ends):
            axes.plot([end, end], [k + 0.28, k + 0.72], color=MUTED.light, linewidth=0.8)
        place = axes.get_yaxis_transform()  # a column at the right, where no bar can reach it
        style = {"va": "center", "size": 11, "color": INK.light}
        axes.text(1.02, k, number(value, 2), transform=place, **style)
    return figure


def shares(reading: Reading) -> Iterator[Panel]:
    """The gradient's part by how two responses are related."""
    influence, relations = reading.shown(InfluenceResult), shares_of(reading)
    if influence is None or not relations:
        return
    figure, (axes,) = canvas(90 + 44 * len(relations))
    values = [estimate.value for estimate in relations.values()]
    unit = relations["together"].unit
    bars(axes, list(relations), values, reach(relations.values()), f"part of δH₁ ({unit})")
    yield Panel(
        "shares",
        "Whose responses moved whose, on U's prompts",
        shares_sentence(reading),
        influence.source(),
        pd.DataFrame([{"share": name, **e.to_dict()} for name, e in relations.items()]),
        figure,
        numbers={f"{name}, part of δH₁": estimate for name, estimate in relations.items()},
    )


def shares_of(reading: Reading) -> dict[str, Estimate]:
    """The shares by relation; empty where they were not asked for."""
    influence = reading.shown(InfluenceResult)
    found = None if influence is None else influence.result.shares
    names = RELATIONS.items() if found is not None else ()
    return {words: e for key, words in names if (e := getattr(found, key)) is not None}


def shares_sentence(reading: Reading) -> str:
    """The shares in words; empty where they were not asked for."""
    influence, relations = reading.shown(InfluenceResult), shares_of(reading)
    if influence is None or influence.result.shares is None or len(relations) < 2:
        return ""
    whole = relations.pop("together")
    parts = listed([f"{name} {with_interval(part)}" for name, part in relations.items()])
    return (
        f"On other responses than those of E, {influence.result.shares.measured_on}, the "
        f"gradient's part is {with_interval(whole)} {whole.unit}: {parts}."
    )


def past_updates(reading: Reading) -> Iterator[Panel]:
    """The momentum by past update."""
    influence = reading.shown(InfluenceResult)
    past = None if influence is None else influence.result.past
    if influence is None or past is None or not past.steps:
        return
    parts = {f"step_{step.step}": step.delta_h for step in past.steps}
    rest = [f"{number(past.not_attributed.delta_h.value)} is not attributed"]
    if past.before is not None:
        before, earliest = past.before.delta_h, f"step_{past.steps[-1].step}"
        parts[f"before {earliest}"] = before
        rest.insert(0, f"{number(before.value)} was there before {earliest}")
    parts["not attributed"] = past.not_attributed.delta_h
    drawn = past.steps[:MOST]
    figure, (axes,) = canvas(310)
    zero_lines(axes)
    back, values = [step.back for step in drawn], [step.delta_h.value for step in drawn]
    axes.bar(back, values, 0.8, color=[by_sign(value) for value in values])
    intervals = reach(step.delta_h for step in drawn)
    points(axes, back, values, INK, yerr=intervals, fmt="none", capsize=0)
    frame(axes, "updates ago", f"part of δH₁ ({influence.result.entropy.unit})")
    half = "" if past.half is None else f" Half of it is of the last {past.half} updates."
    total = influence.result.entropy.momentum
    yield Panel(
        "past_updates",
        "Which past updates act through momentum",
        f"Momentum moves entropy by {with_interval(total)} {total.unit}.{half} Of that, "
        f"{' and '.join(rest)}.",
        influence.source("results.json", "momentum.parquet"),
        pd.DataFrame([{"part": name, **e.to_dict()} for name, e in parts.items()]),
        figure,
    )
