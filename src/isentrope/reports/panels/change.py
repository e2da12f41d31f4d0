"""How far a step moves entropy, and what the change is made of.

Points of ΔH(η) carry their intervals; a hollow point has weights too uneven for one. The band is
the interval of the first-order prediction ηδH₁, the dashed line ηδH₁ + η²δH₂. ΔH/η is level where
ΔH is linear. At the training rate the change is a waterfall:

    ηδH₁ = momentum + decay + gradient,     ΔH(η) = ηδH₁ + η²δH₂ + the rest

The figures that verbs write beside their results are drawn here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isentrope.estimators.entropy_change import EntropyChange
from isentrope.reports.drawing import (
    FIRST,
    INK,
    MEASURED,
    PAPER,
    SECOND,
    Bars,
    Chart,
    Mark,
    Series,
    dashed,
)
from isentrope.reports.panel import Panel
from isentrope.reports.words import within_one_se
from isentrope.results.answers.blocks import short, with_error
from isentrope.results.answers.measure import change_at_rate
from isentrope.results.results import MeasureResult, TrialResult
from isentrope.update.step import COMPONENTS

if TYPE_CHECKING:  # a verb that draws its figure reads no run
    from isentrope.reports.read_run import Reading


def at_rate(result: MeasureResult, unit: str) -> str:
    """The rate of interest in the name of a number, which is not that of a run of another rate."""
    return f"at η = {short(result.rate or math.nan, 6)} ({unit})"


def delta_h(reading: Reading) -> Iterator[Panel]:
    """ΔH(η), and ΔH/η below it."""
    measured = reading.shown(MeasureResult)
    result = measured.result
    if not result.sweep:
        return
    paths = {
        "entropy": f"entropy.{result.estimator.functional}",
        **_change_path(result),
        "first order δH₁": "first_order",
        "linear range η*": "linear_range",
    }
    trusted = sum(row.verdict == "trust" for row in result.sweep)
    yield Panel(
        measured.source,
        "delta_h",
        "Change of entropy against the learning rate",
        f"{trusted} of {len(result.sweep)} learning rates are measured with an interval. The lower "
        "row is level where entropy changes in proportion to the learning rate.",
        _chart(result),
        *measured.at(paths),
    )


def _change_path(result: MeasureResult) -> dict[str, str]:
    """Where ΔH at the rate of interest is, by its name."""
    row = result.at_rate()
    column = "delta_h" if row is None or row.resampled is None else "resampled"
    return {f"ΔH {at_rate(result, result.unit)}": f"sweep[{{rate}}].{column}"}


def waterfall(reading: Reading) -> Iterator[Panel]:
    """The parts, their sum, and what lies beyond first order."""
    measured = reading.shown(MeasureResult)
    result = measured.result
    paths = {name: f"budget.{name}" for name in (*COMPONENTS, "total")}
    parts, influences = measured.at(paths)
    if not parts:
        return
    rate = result.rate or 1.0
    row = result.at_rate()
    change = change_at_rate(result)
    steps = {name: part.scaled(rate) for name, part in parts.items()}
    per_rate = {name: f"{name} per unit η" for name in parts}
    if row is not None and change is not None and result.second_order is not None:
        at = at_rate(result, result.unit)
        second = result.second_order.scaled(rate**2)
        remainder = row.residual
        if remainder is None or row.resampled is not None or math.isnan(remainder.value):
            value = change.value - steps["total"].value - second.value
            remainder = within_one_se(value, math.nan)
        steps |= {f"second order {at}": second, f"the rest {at}": remainder, f"ΔH {at}": change}
        influences |= measured.at({f"second order {at}": "second_order", **_change_path(result)})[1]
    compared = {per_rate.get(name, name): parts.get(name, step) for name, step in steps.items()}
    words = [name for name in parts if name != "total"]
    words += ["first order", "second order", "the rest", "measured"]
    starts = list[float]()
    end = 0.0
    written = dict[str, str]()
    for (name, step), word in zip(steps.items(), words, strict=False):
        starts.append(0.0 if word in ("first order", "measured") else end)
        end = starts[-1] + step.value
        written[name] = f"{word}  {short(step.value, 2)}"
    yield Panel(
        measured.source,
        "budget",
        f"From momentum to what is measured, at η = {short(rate)}",
        "A bar starts where the last one ended, and a sum from zero. All are changes of one step.",
        Bars(f"ΔH ({result.unit})", steps, starts, written, compared=compared),
        influences={per_rate.get(name, name): rows for name, rows in influences.items()},
    )


def entropy_change_figure(result: MeasureResult) -> Figure:
    """ΔH(η) as measured and as predicted; below it ΔH/η, which is level where ΔH is linear."""
    figure = _chart(result).figure()
    title = f"{result.policy.name}: entropy {with_error(result.at_theta)} {result.unit}"
    figure.suptitle(title, fontsize=11.5)
    return figure


def sweep_figure(change: EntropyChange) -> Figure:
    """The same of a sweep that is no result of a verb."""
    if not change.points:
        raise LookupError("A sweep without learning rates has no figure: give entropy_change etas.")
    drawn = SimpleNamespace(
        **vars(change), sweep=change.rows(), unit=change.unit, rate=None, rate_name=""
    )
    return _chart(drawn).figure()


def _chart(result: Any) -> Chart:
    """What is drawn of ΔH, on a signed logarithmic axis, and of ΔH/η."""
    eta = [row.eta for row in result.sweep]
    spread = 1.8 if min(eta) < max(eta) else 4.0
    rates = np.geomspace(min(eta) / spread, max(eta) * spread, 160)
    sizes = [size for row in result.sweep if (size := abs(row.change.value)) > 0]
    smallest = 10 ** math.floor(math.log10(min(sizes))) if sizes else None
    rows = {
        f"ΔH ({result.unit})": _marks(result, rates, 0, smallest),
        f"ΔH/η ({result.unit} per η)": _marks(result, rates, 1),
    }
    return Chart("learning rate η", rows, 500)


def _marks(result: Any, rates: np.ndarray, power: int, smallest: float | None = None) -> list[Mark]:
    """What is drawn of ΔH/η^power, on a logarithmic axis down to the smallest change if any."""
    marks = list[Mark]()
    first = result.first_order
    second = result.second_order
    trusted = [row for row in result.sweep if row.verdict == "trust"]
    uneven = [row for row in result.sweep if row.verdict != "trust"]
    fresh = [row for row in result.sweep if row.resampled]
    for label, rows, change, colour, fmt, style in (
        ("measured", trusted, "change", MEASURED, "o", {}),
        ("uneven weights", uneven, "change", MEASURED, "o", {"mfc": PAPER}),
        ("fresh responses", fresh, "best", INK, "D", {}),
    ):
        if not rows:
            continue
        changes = [getattr(row, change).scaled(row.eta**-power) for row in rows]
        eta = [row.eta for row in rows]
        marks.append(Series(label, colour, eta, changes, fmt, {"zorder": 4, **style}))
    marks.append(lambda axes: _limit(axes, rates, smallest))
    if first is not None:
        line = [first.scaled(rate ** (1 - power)) for rate in rates]
        marks.append(Series("first order", FIRST, rates, line, "-"))
        if second is not None:
            total = (first.value + second.value * rates) * rates ** (1 - power)
            marks.append(Series("first + second", SECOND, rates, total, "-", {"dashes": (4, 2)}))
    reach = result.linear_range and result.linear_range.value
    for name, rate, dashes in (
        (result.rate_name, result.rate, (6, 2, 1, 2)),
        ("η*", reach, (1, 2)),
    ):
        if rate is not None and rates[0] <= rate <= rates[-1]:
            marks.append(dashed(rate, name, "x", dashes))
    return marks


def _limit(axes: Axes, rates: np.ndarray, smallest: float | None) -> None:
    """Room for the points and zero, and not for far predictions, which are drawn later."""
    axes.set_xscale("log")
    axes.set_xlim(rates[0], rates[-1])
    if smallest is not None:
        axes.set_yscale("symlog", linthresh=smallest)
        axes.yaxis.get_major_locator().set_params(numticks=7)  # pyright: ignore
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0), max(high, 0))


def trial_figure(result: TrialResult) -> Figure:
    """Entropy gained over vanilla against reward gained (or tokens touched), by control."""
    rewarded = "delta_j" in result.vanilla["step"]
    marks = list[Mark]()
    order = sorted(result.tried.values(), key=lambda entry: (entry.control, entry.strength))
    for k, (_, entries) in enumerate(groupby(order, lambda entry: entry.control)):
        trials = list(entries)
        gained = [entry.step["gained_delta_h"] for entry in trials]
        against = [
            entry.step["gained_delta_j"] if rewarded else entry.did.get("touched", 0.0)
            for entry in trials
        ]
        fmt = f"-{'osD^v<>PX*hd8p'[k % 14]}"
        style = {"linewidth": 1, "capsize": 0}
        marks.append(Series(trials[0].label, f"C{k}", against, gained, fmt, style))
    x = "ΔJ gained (reward)" if rewarded else "share of tokens touched"
    y = f"ΔH gained ({result.vanilla['step']['delta_h'].unit})"
    figure = Chart(x, {y: marks}, 480).figure()
    title = f"{result.policy.name}: gained over vanilla in one step of η = {result.eta:.3g}"
    figure.suptitle(title, fontsize=11.5)
    return figure
