"""Where the change comes from: the budget of one step as a waterfall.

    ηδH₁ = momentum + decay + gradient,     ΔH(η) = ηδH₁ + η²δH₂ + the rest

at the training rate η; and how the gradient's part splits by prompt, which is measured on other
responses: fresh ones to U's prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from isentrope.estimate import Estimate
from isentrope.formatting import listed, percent
from isentrope.reports.palette import FIRST, INK, MEASURED, MUTED, SECOND, by_sign
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.rows import at_training_rate, change_at, records
from isentrope.reports.sentences import number, with_interval
from isentrope.reports.svg import canvas, grid, zero_line

SHARES = {
    "self": "the response itself",
    "same_prompt": "same prompt",
    "other_prompt": "other prompts",
    "gradient": "together",
}


def budget_panels(reading: Reading) -> list[Panel]:
    """The waterfall, and the shares by prompt.

    Args:
        reading: The run.

    Returns:
        Those that the results allow.
    """
    measured, influence = reading.shown("measure"), reading.shown("influence")
    panels = []
    if measured is not None and (measured.results.get("budget") or {}).get("total") is not None:
        panels.append(_waterfall(measured))
    elif influence is not None:
        panels.append(_waterfall_of_influence(influence))
    if influence is not None and "shares" in influence.results:
        panels.append(_shares(influence))
    return panels


def _waterfall(measured: Measurement) -> Panel:
    results = measured.results
    budget, unit = results["budget"], results["estimator"]["unit"]
    row = at_training_rate(results)
    rate = results["step"].get("rate_of_interest") or 1.0
    steps = [
        _step(name, budget[name] * rate, budget[f"{name}_se"] * rate, "part")
        for name in ("momentum", "decay", "gradient", "control")
        if name in budget
    ]
    steps.append(_step("first order", budget["total"] * rate, budget["total_se"] * rate, "first"))
    if row is not None and row["deltaH_second"] is not None:
        steps.append(_step("second order", row["deltaH_second"], row["deltaH_second_se"], "second"))
        change = change_at(row, unit)
        known = budget["total"] * rate + row["deltaH_second"]
        if row["residual"] is not None and not row["resampled"]:
            sound = row.get("residual_verdict", "trust") == "trust"
            error = row["residual_se"] if sound else None
            steps.append(_step("the rest", row["residual"], error, "part"))
        else:
            steps.append(_step("the rest", change["value"] - known, None, "part"))
        steps.append(_step("measured", change["value"], change["se"], "measured"))
    data = pd.DataFrame(steps)
    numbers = {f"{name} part of δH₁": _part_of(results, name) for name in ("momentum", "gradient")}
    title = f"From momentum to what is measured, at η = {number(rate)}"
    return Panel(
        "budget",
        title,
        _caption(data, budget["total"] * rate, unit),
        measured.source(),
        data,
        _draw(data, f"ΔH ({unit})"),
        numbers=numbers,
    )


def _part_of(results: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the budget with its interval, over the prompts of E as δH₁ has it."""
    budget, estimator = results["budget"], results["estimator"]
    return Estimate.from_standard_error(
        budget[name],
        budget[f"{name}_se"],
        results["entropy"][estimator["functional"]]["n"],
        unit=f"{estimator['unit']} per η",
        method="budget",
        confidence=estimator["confidence"],
    ).to_dict()


def _waterfall_of_influence(influence: Measurement) -> Panel:
    entropy = influence.results["entropy"]
    parts = {name: entropy[name] for name in ("momentum", "decay", "gradient")}
    steps = [_step(name, part["value"], part["se"], "part") for name, part in parts.items()]
    total = entropy["total"]
    steps.append(_step("first order", total["value"], total["se"], "first"))
    data = pd.DataFrame(steps)
    return Panel(
        "budget",
        "From momentum to the first order, per unit η",
        _caption(data, total["value"], entropy["unit"]),
        influence.source(),
        data,
        _draw(data, entropy["unit"]),
    )


def _step(name: str, value: float, se: float | None, kind: str) -> dict[str, Any]:
    return {"name": name, "value": value, "se": se, "kind": kind}


def _caption(data: pd.DataFrame, total: float, unit: str) -> str:
    parts = data[data["kind"] == "part"].head(3)
    said = [
        f"{row['name']} {number(row['value'])}"
        + (f" ({percent(row['value'] / total)})" if total else "")
        for _, row in parts.iterrows()
        if abs(row["value"]) > 0.0005 * abs(total)
    ]
    return f"First order {number(total)} {unit} is {listed(said)}." if said else "Nothing moved."


def _draw(data: pd.DataFrame, label: str) -> Any:
    """Bars from where the last one ended; totals start from zero. Whiskers are one se."""
    figure, (axes,) = canvas(300)
    rows = np.arange(len(data))
    colours = {"first": FIRST.light, "second": SECOND.light, "measured": MEASURED.light}
    level = 0.0
    for k, row in zip(rows, records(data), strict=True):
        total = row["kind"] in ("first", "measured")
        start = 0.0 if total else level
        colour = colours.get(row["kind"]) or by_sign(row["value"])
        axes.barh(k, row["value"], left=start, height=0.56, color=colour)
        level = start + row["value"]
        if row["se"]:
            axes.errorbar(level, k, xerr=row["se"], color=INK.light, capsize=3, linewidth=1.2)
        if k < rows[-1]:
            axes.plot([level, level], [k + 0.28, k + 0.72], color=MUTED.light, linewidth=0.8)
    zero_line(axes, vertical=True)
    _room_for_values(axes, data)
    axes.set_yticks(rows, data["name"])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(label)
    grid(axes, "x")
    return figure


def _room_for_values(axes: Any, data: pd.DataFrame) -> None:
    """The value of each bar in a column at the right, where no bar can reach it."""
    for k, value in enumerate(data["value"]):
        axes.text(
            1.02,
            k,
            number(value, 2),
            transform=axes.get_yaxis_transform(),
            va="center",
            size=11,
            color=INK.light,
        )


def _shares(influence: Measurement) -> Panel:
    shares = influence.results["shares"]
    found = {words: shares[key] for key, words in SHARES.items() if key in shares}
    data = pd.DataFrame([{"share": words, **estimate} for words, estimate in found.items()])
    figure, (axes,) = canvas(90 + 44 * len(found))
    for k, estimate in enumerate(found.values()):
        low, high = (estimate[end] for end in ("ci_low", "ci_high"))
        if low is not None:
            axes.plot([low, high], [k, k], color=by_sign(estimate["value"]), linewidth=2)
        axes.plot(estimate["value"], k, "o", color=by_sign(estimate["value"]), markersize=7)
    zero_line(axes, vertical=True)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"part of δH₁ ({shares['gradient']['unit']})")
    grid(axes, "x")
    said = [f"{words} {with_interval(e)}" for words, e in found.items() if words != "together"]
    whole = shares["gradient"]
    caption = (
        f"Not the population of the budget, which is measured on E: on {shares['measured_on']} the "
        f"gradient's part is {with_interval(whole)} {whole['unit']}, {listed(said)}."
    )
    numbers = {f"{words}, part of δH₁": estimate for words, estimate in found.items()}
    return Panel(
        "shares",
        "Whose responses moved whose, on U's prompts",
        caption,
        influence.source(),
        data,
        figure,
        numbers=numbers,
    )
