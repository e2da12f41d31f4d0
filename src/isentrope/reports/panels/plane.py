"""The exploration–exploitation plane: what is earned against the entropy it costs.

At one checkpoint: ΔJ(η) against ΔH(η), rate by rate, with the second order of both. Along training:
reward against entropy, one point per step or per evaluated checkpoint, and the law
R = b − a exp(h) that is fitted to the steps. Within one step: (δH_i, δJ_i) of every sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law
from isentrope.reports.drawing import annotate, canvas, frame, line, points, reach, zero_lines
from isentrope.reports.evaluations import Evaluation
from isentrope.reports.palette import INK, LOSS, MEASURED, MUTED, REWARD, SECOND
from isentrope.reports.panel import Panel
from isentrope.reports.read_run import Reading
from isentrope.reports.sentences import has_interval, number, with_interval, without_error
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import percent

WITH_ERRORS = 24
"""Sequences that are drawn with their errors."""


def trade_off(reading: Reading) -> Iterator[Panel]:
    """ΔJ against ΔH over η, at the rates at which both have an interval."""
    measured = reading.shown(MeasureResult)
    reward = None if measured is None else measured.result.reward
    if measured is None or reward is None:
        return
    result, start = measured.result, reward.at_theta
    rows = [(row, reward.at(row.eta)) for row in result.sweep]
    pairs = [
        (row.eta, result.change_at(row), gained.change(start))
        for row, gained in rows
        if gained is not None
    ]
    pairs = [pair for pair in pairs if has_interval(pair[1]) and has_interval(pair[2])]
    if not pairs:
        return
    rates, changes, gains = zip(*pairs, strict=True)
    figure, (axes,) = canvas(310)
    zero_lines(axes, "xy")
    x, y = [e.value for e in changes], [e.value for e in gains]
    points(axes, x, y, MEASURED, "measured", xerr=reach(changes), yerr=reach(gains))
    for eta, h, j in pairs[-3:]:
        annotate(axes, h.value, j.value, f"η = {number(eta, 2)}")
    orders = (result.first_order, result.second_order, reward.first_order, reward.second_order)
    if None not in orders:
        eta = np.linspace(0, max(rates), 100)
        h1, h2, j1, j2 = (order.value for order in orders if order is not None)
        both = eta * h1 + eta**2 * h2, eta * j1 + eta**2 * j2
        line(axes, *both, SECOND, "first + second order", dashes=(4, 2), zorder=1)
    here = result.at_rate()
    if here is not None:
        style = {"color": MUTED.light, "dashes": (6, 2, 1, 2)}
        axes.axvline(here.delta_h, label="training rate", **style)
    frame(axes, f"ΔH ({result.unit})", "ΔJ (reward)", grid="both")
    eta, h, j = next((pair for pair in pairs if pair[0] == result.rate), pairs[-1])
    at_rate = reward.at(result.rate)
    quantities = {"J": (start, ""), "first order δJ₁": (reward.first_order, "reward.first_order")}
    if at_rate is not None:
        own = f"reward.sweep[{at_rate.eta:g}].delta_j"
        quantities[f"ΔJ at η = {number(at_rate.eta)}"] = (at_rate.change(start), own)
    numbers, influences = measured.compared(quantities)
    yield Panel(
        "trade_off",
        "What a step earns for the entropy it costs",
        f"At η = {number(eta)} the step changes entropy by {with_interval(h)} {h.unit} and the "
        f"expected reward, {number(start.value)} before it, by {with_interval(j)}.",
        measured.source("results.json", "sweep.parquet"),
        pd.DataFrame([asdict(row) for row in reward.sweep]),
        figure,
        numbers=numbers,
        influences=influences,
    )


def law_of(reading: Reading) -> EntropyLaw | None:
    """The law of a run, fitted to its training log; None where that cannot fix it."""
    known = reading.logged("entropy", "reward")
    try:
        steps = None if known is None else (known["entropy"].to_list(), known["reward"].to_list())
        return None if steps is None else fit_entropy_law(*steps)
    except ValueError:  # too few steps, or an entropy that never moved
        return None


def along_training(reading: Reading) -> Iterator[Panel]:
    """Reward against entropy, of training batches and of evaluated checkpoints."""
    steps = reading.logged("step", "entropy", "reward")
    evaluated = (e for e in reading.evaluations if e.along("reward") and e.along(H))
    evaluation = next(evaluated, None)
    figure, (axes,) = canvas(310)
    tables = []
    if steps is not None:
        style = {"s": 14, "color": MUTED.light, "alpha": 0.45, "linewidth": 0}
        axes.scatter(steps["entropy"], steps["reward"], label="training batch", **style)
        tables.append(steps[["step", "entropy", "reward"]].assign(of="training batch"))
    if evaluation is not None:
        tables.append(_draw_evaluation(axes, evaluation).assign(of="evaluation"))
    if not tables:
        return
    first, last = tables[-1].iloc[0], tables[-1].iloc[-1]
    caption = (
        f"From step {first['step']:.0f} to {last['step']:.0f} entropy went from "
        f"{number(first['entropy'])} to {number(last['entropy'])} nats per token and "
        f"reward from {number(first['reward'])} to {number(last['reward'])}."
    )
    law, fitted = law_of(reading), {}
    if law is not None and law.misfits:
        caption += " R = b − a exp(h) was fitted to the training batches."
    elif law is not None:
        fitted = {"a of the law": law.a, "reward at no entropy": law.ceiling}
        a, ceiling = (without_error(x) for x in fitted.values())
        caption += (
            f" The training batches follow R = b − a exp(h) with a = {a}, a reward of {ceiling} at "
            f"h = 0 (R² = {number(law.r_squared, 2)})."
        )
        _draw_law(axes, law)
    frame(axes, "entropy (nats per token)", "reward", grid="both")
    yield Panel(
        "plane",
        "Reward against entropy along training",
        " ".join([caption, *(law.warnings if law else ())]),
        reading.training_source() if steps is not None else reading.evaluations[0].source(),
        pd.concat(tables, ignore_index=True),
        figure,
        numbers=fitted,
    )


H = "entropy_per_token"


def _draw_evaluation(axes: Axes, evaluation: Evaluation) -> pd.DataFrame:
    entropy, reward = evaluation.along(H), evaluation.along("reward")
    path = pd.DataFrame(
        {
            "step": evaluation.sampled()["step"].to_numpy(),
            "entropy": [e.value for e in entropy],
            "reward": [e.value for e in reward],
        }
    )
    errors = {"xerr": reach(entropy), "yerr": reach(reward)}
    style = {"fmt": "-o", "linewidth": 1.2}
    points(axes, path["entropy"], path["reward"], MEASURED, "evaluated", **errors, **style)
    for row in (path.iloc[0], path.iloc[-1]):
        annotate(axes, row["entropy"], row["reward"], f"step {row['step']:.0f}")
    return path


def _draw_law(axes: Axes, law: EntropyLaw) -> None:
    entropy, limits = np.linspace(*axes.get_xlim(), 50), axes.get_ylim()
    style = {"dashes": (4, 2), "linewidth": 1, "zorder": 1}
    line(axes, entropy, [law(h) for h in entropy], INK, "b − a exp(h)", **style)
    axes.set_ylim(limits)


def within_step(reading: Reading) -> Iterator[Panel]:
    """What each sequence does to entropy and to reward."""
    influence = reading.shown(InfluenceResult)
    reward = None if influence is None else influence.result.reward
    table = None if influence is None else influence.result.tables.get("sequences")
    if influence is None or reward is None or table is None:
        return
    entropy = influence.result.entropy
    figure, (axes,) = canvas(310)
    zero_lines(axes, "xy")
    advantage = table["advantage"].astype(float)
    kinds = {
        "rewarded (A > 0)": (advantage > 0, REWARD),
        "punished (A < 0)": (advantage < 0, LOSS),
        "neither (A = 0)": (advantage.isna() | (advantage == 0), MUTED),
    }
    for label, (rows, colour) in kinds.items():
        if rows.any():
            x, y = table["delta_h"][rows], table["delta_j"][rows]
            style = {"s": 16, "color": colour.light, "alpha": 0.55, "linewidth": 0}
            axes.scatter(x, y, label=label, **style)
    most = table.loc[table["delta_h"].abs().nlargest(WITH_ERRORS).index]
    label, errors = f"error of the {len(most)} largest", (most["delta_h_se"], most["delta_j_se"])
    style = {"fmt": "none", "elinewidth": 0.7, "alpha": 0.5, "zorder": 1, "capsize": 0}
    x, y = most["delta_h"], most["delta_j"]
    points(axes, x, y, INK, label, xerr=errors[0], yerr=errors[1], **style)
    frame(axes, f"δH ({entropy.unit})", f"δJ ({reward.unit})", grid="both")
    wasted = float(((table["delta_h"] < 0) & (table["delta_j"] <= 0)).mean())
    columns = ["sequence", "key", "length", "reward", "advantage", "delta_h", "delta_h_se"]
    yield Panel(
        "plane_step",
        "What each sequence cost and earned",
        f"{percent(wasted)} of the sequences lower entropy and earn nothing; together they move "
        f"entropy by {with_interval(entropy.gradient)} and reward by "
        f"{with_interval(reward.gradient)} per unit η.",
        influence.source("sequences.parquet"),
        table[[*columns, "delta_j", "delta_j_se"]],
        figure,
        numbers={"δJ of the step": reward.total, "δJ of the gradient": reward.gradient},
    )
