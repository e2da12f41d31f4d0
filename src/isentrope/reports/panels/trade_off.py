"""What one step earns for the entropy it costs, rate by rate: ΔJ(η) against ΔH(η).

Points carry both intervals; the dashed line is the second order of both. The sentence on the
learning rate says whether it could be raised, and whether the batch is large enough.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from isentrope.attribution.noise.best_rate import BestRate, Range, averaged_batches
from isentrope.nouns.estimate import Estimate
from isentrope.reports.palette import INK, MEASURED, MUTED, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Measurement, Reading
from isentrope.reports.sentences import has_interval, number, with_interval, without_error
from isentrope.reports.svg import canvas, grid, legend, zero_line
from isentrope.results.results import MeasureResult, NoiseResult
from isentrope.results.sweep import RewardRecord
from isentrope.system.formatting import percent

Pair = tuple[float, Estimate, Estimate]
"""η, ΔH(η) and ΔJ(η)."""


def trade_off_panel(measured: Measurement[MeasureResult] | None) -> Panel | None:
    """ΔJ against ΔH over η; None where ΔJ was not measured with an interval."""
    reward = None if measured is None else measured.result.reward
    if measured is None or reward is None:
        return None
    result = measured.result
    pairs = _pairs(result, reward)
    if not pairs:
        return None
    figure, (axes,) = canvas(310)
    zero_line(axes)
    zero_line(axes, vertical=True)
    _draw_points(axes, pairs)
    _draw_second_order(axes, result, reward, max(eta for eta, _, _ in pairs))
    axes.set_xlabel(f"ΔH ({result.unit})")
    axes.set_ylabel("ΔJ (reward)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: number(value, 2))
    axes.locator_params(nbins=5)
    grid(axes, "both")
    legend(axes)
    return Panel(
        "trade_off",
        "What a step earns for the entropy it costs",
        _caption(result, reward, pairs),
        measured.source("results.json", "sweep.parquet"),
        pd.DataFrame([asdict(row) for row in reward.sweep]),
        figure,
        numbers=_numbers(result, reward),
        influences=measured.influences(_influenced(result)),
    )


def _pairs(result: MeasureResult, reward: RewardRecord) -> list[Pair]:
    """The rates at which both changes have an interval."""
    pairs = []
    for row in result.sweep:
        gained = reward.at(row.eta)
        if gained is not None:
            both = result.change_at(row), gained.change(reward.at_theta)
            pairs += [(row.eta, *both)] if all(map(has_interval, both)) else []
    return pairs


def _draw_points(axes: Axes, pairs: list[Pair]) -> None:
    ends = [
        np.array([[e.value - e.ci_low, e.ci_high - e.value] for e in changes]).T
        for changes in ([h for _, h, _ in pairs], [j for _, _, j in pairs])
    ]
    x, y = [h.value for _, h, _ in pairs], [j.value for _, _, j in pairs]
    style = {"color": MEASURED.light, "capsize": 2, "elinewidth": 0.9}
    axes.errorbar(x, y, xerr=ends[0], yerr=ends[1], fmt="o", label="measured", **style)
    for eta, h, j in pairs[-3:]:
        axes.annotate(
            f"η = {number(eta, 2)}",
            (h.value, j.value),
            xytext=(7, 5),
            textcoords="offset points",
            fontsize=10,
            color=INK.light,
        )


def _draw_second_order(
    axes: Axes, result: MeasureResult, reward: RewardRecord, largest: float
) -> None:
    orders = (result.first_order, result.second_order, reward.first_order, reward.second_order)
    if any(order is None for order in orders):
        return
    eta = np.linspace(0, largest, 100)
    h1, h2, j1, j2 = (order.value for order in orders if order is not None)
    lines = eta * h1 + eta**2 * h2, eta * j1 + eta**2 * j2
    axes.plot(*lines, color=SECOND.light, dashes=(4, 2), label="first + second order", zorder=1)
    row = result.at_rate()
    if row is not None:
        axes.axvline(row.delta_h, color=MUTED.light, dashes=(6, 2, 1, 2), label="training rate")


def _caption(result: MeasureResult, reward: RewardRecord, pairs: list[Pair]) -> str:
    here = [pair for pair in pairs if pair[0] == result.rate] or pairs[-1:]
    eta, h, j = here[0]
    return (
        f"At η = {number(eta)} the step changes entropy by {with_interval(h)} {h.unit} and the "
        f"expected reward, {number(reward.at_theta.value)} before it, by {with_interval(j)}."
    )


def _numbers(result: MeasureResult, reward: RewardRecord) -> dict[str, Estimate]:
    row = reward.at(result.rate)
    numbers = {"J": reward.at_theta, "first order δJ₁": reward.first_order}
    if row is not None:
        numbers[f"ΔJ at η = {number(row.eta)}"] = row.change(reward.at_theta)
    return {name: estimate for name, estimate in numbers.items() if estimate is not None}


def _influenced(result: MeasureResult) -> dict[str, str]:
    rate = result.rate or 0.0
    at_rate = {f"ΔJ at η = {number(rate)}": f"reward.sweep[{rate:g}].delta_j"}
    return {"first order δJ₁": "reward.first_order", **at_rate}


def rate_sentence(reading: Reading) -> str:
    """Could the rate be raised, and is the batch large enough? Empty where ΔJ is not there."""
    measured, noise = reading.shown(MeasureResult), reading.shown(NoiseResult)
    reward = None if measured is None else measured.result.reward
    if measured is None or reward is None:
        return ""
    if reward.top is None:
        return "" if reward.no_top is None else f"No best rate follows. {reward.no_top}"
    text = _against_the_top(measured.result, reward, reward.top)
    return f"{text} {_batch(measured.result, reward.top, noise and noise.result)}"


def _against_the_top(result: MeasureResult, reward: RewardRecord, top: Estimate) -> str:
    text = f"Along this step reward is highest at η = {without_error(top)}"
    trusted = [row.eta for row in reward.sweep if row.verdict == "trust"]
    if top.value > max(trusted, default=math.inf):
        text += f", beyond the rates at which ΔJ has an interval (up to {number(max(trusted))})"
    rate = result.rate
    if rate is None:
        return f"{text}."
    if rate < top.ci_low:
        could = "is below that, so a step on this batch could be larger"
    elif rate > top.ci_high:
        could = "is above that, so it should be lowered"
    else:
        could = "is not distinguishable from that"
    return f"{text}; the training rate {number(rate)} {could}."


def _batch(result: MeasureResult, top: Estimate, noise: NoiseResult | None) -> str:
    scale = None if noise is None else noise.preconditioned.get("b_simple")
    if scale is None:
        return "Whether the batch is large enough takes a noise scale: run isentrope noise."
    averaged, prompts = averaged_batches(result.step.param_groups), result.batches.B_U
    if averaged is None:
        return "Param groups differ in momentum, so that no rate without noise follows."
    best = BestRate(top, scale, prompts, averaged)
    if not best.known:
        return "The noise scale has no interval with two ends, so no rate without noise follows."
    lost = best.lost
    enough = "large enough" if lost.high <= 0.5 else "too small" if lost.low > 0.5 else "borderline"
    batches = "" if averaged == 1 else f" (momentum averages {number(averaged)} batches)"
    return (
        f"At {number(prompts)} prompts{batches} the batch is {enough}: its noise takes "
        f"{percent(lost.value)} [{percent(lost.low)}, {percent(lost.high)}] off the best rate "
        f"η_max = {_with_range(best.at(math.inf))} of a step without noise, and twice the batch "
        f"would allow {_with_range(best.at(2 * prompts))}."
    )


def _with_range(found: Range) -> str:
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"
