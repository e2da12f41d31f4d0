"""Where the change comes from: the budget of one step as a waterfall.

    ηδH₁ = momentum + decay + gradient,     ΔH(η) = ηδH₁ + η²δH₂ + the rest

at the training rate η; how the gradient's part splits by prompt, which is measured on other
responses (fresh ones to U's prompts).
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isentrope.nouns.estimate import Estimate
from isentrope.reports.drawing import (
    FIRST,
    INK,
    MEASURED,
    SECOND,
    bars,
    by_sign,
    named_rows,
    points,
)
from isentrope.reports.panel import Panel, bare, number, with_interval
from isentrope.reports.read_run import Reading
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.update.step import COMPONENTS

RELATIONS = {
    "itself": "the response itself",
    "same_prompt": "same prompt",
    "other_prompt": "other prompts",
    "gradient": "together",
}


def parts_of(reading: Reading) -> dict[str, Estimate]:
    """δH₁ per unit η of each part of the step and "total"; empty where no verb measured it."""
    measured, influence = reading.shown(MeasureResult), reading.shown(InfluenceResult)
    if measured is not None and measured.result.part("total") is not None:
        parts = {name: measured.result.part(name) for name in (*COMPONENTS, "total")}
        return {name: part for name, part in parts.items() if part is not None}
    if influence is None:
        return {}
    names = ("momentum", "decay", "gradient", "total")
    return {name: getattr(influence.result.entropy, name) for name in names}


def waterfall(reading: Reading) -> Iterator[Panel]:
    """The parts, their sum, and what lies beyond first order."""
    measured, parts = reading.shown(MeasureResult), parts_of(reading)
    if measured is None or measured.result.part("total") is None:
        return
    total, result = parts.pop("total"), measured.result
    rate = result.rate or 1.0
    first = total.value * rate
    steps = [(name, part.value * rate, part.se * rate, "part") for name, part in parts.items()]
    steps.append(("first order", first, total.se * rate, "first"))
    data = pd.DataFrame(
        steps + _beyond_first(result, first), columns=["name", "value", "se", "kind"]
    )
    quantities = {f"{name} part of δH₁": (part, f"budget.{name}") for name, part in parts.items()}
    yield Panel(
        "budget",
        f"From momentum to what is measured, at η = {number(rate)}",
        "A bar starts where the last one ended, and a sum from zero; whiskers are one standard "
        "error.",
        measured.source(),
        data,
        _draw(data, f"ΔH ({result.unit})"),
        *measured.compared(quantities),
    )


def _beyond_first(result: MeasureResult, first: float) -> list[tuple[str, float, float, str]]:
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
        ("second order", row.second_order, row.second_order_se, "second"),
        ("the rest", rest, se, "part"),
        ("measured", change.value, change.se, "measured"),
    ]


def _draw(data: pd.DataFrame, label: str) -> Figure:
    """Bars from where the last one ended; totals start from zero. Whiskers are one se."""
    values, kinds, ends = list(data["value"]), list(data["kind"]), [0.0]
    for value, kind in zip(values, kinds, strict=True):
        ends.append(value if kind in ("first", "measured") else ends[-1] + value)
    orders = {"first": FIRST, "second": SECOND, "measured": MEASURED}
    colours = [orders.get(k) or by_sign(x) for k, x in zip(kinds, values, strict=True)]
    places = range(len(data))
    names = [
        f"{name}  {number(value, 2)}" for name, value in zip(data["name"], values, strict=True)
    ]

    def draw(axes: Axes) -> None:
        axes.barh(places, values, 0.56, np.subtract(ends[1:], values), color=colours)

    moved = [bare(end, se) for end, se in zip(ends[1:], data["se"], strict=True)]
    whiskers = points(moved, places, INK, fmt="none")
    return named_rows(names, label, draw, whiskers, height=300)


def shares(reading: Reading) -> Iterator[Panel]:
    """The gradient's part by how two responses are related."""
    influence, (relations, sentence) = reading.shown(InfluenceResult), shares_of(reading)
    if influence is None or not relations:
        return
    names, values = list(relations), list(relations.values())
    yield Panel(
        "shares",
        "Whose responses moved whose, on U's prompts",
        sentence,
        influence.source(),
        pd.DataFrame([{"share": name, **e.to_dict()} for name, e in relations.items()]),
        bars(names, values, f"part of δH₁ ({values[-1].unit})"),
        {f"{name}, part of δH₁": estimate for name, estimate in relations.items()},
    )


def shares_of(reading: Reading) -> tuple[dict[str, Estimate], str]:
    """The shares by relation, and in words; empty where they were not asked for."""
    influence = reading.shown(InfluenceResult)
    found = None if influence is None else influence.result.shares
    if found is None:
        return {}, ""
    every = {words: getattr(found, key) for key, words in RELATIONS.items()}
    relations = {words: estimate for words, estimate in every.items() if estimate is not None}
    *parts, whole = (f"{words} {with_interval(e)}" for words, e in relations.items())
    return relations, (
        f"On other responses than those of E, {found.measured_on}, the gradient's part is, in "
        f"{found.gradient.unit}: {', '.join(parts)}; {whole}."
    )
