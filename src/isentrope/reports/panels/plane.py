"""What was earned for entropy: where it is spent, and the exploration–exploitation plane.

At one checkpoint: ΔJ(η) against ΔH(η), rate by rate, with the second order of both. Along training:
reward against entropy, one point per step or per evaluated checkpoint, and the law
R = b − a exp(h) that is fitted to the steps. Within one step: (δH_i, δJ_i) of every sequence.
"""

import math
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law
from isentrope.nouns.estimate import Estimate, t_quantile
from isentrope.reports.drawing import (
    INK,
    LOSS,
    MEASURED,
    MUTED,
    REWARD,
    bars,
    chart,
    dashed,
    line,
    points,
)
from isentrope.reports.panel import Panel, has_interval, number, with_interval, without_error
from isentrope.reports.read_run import Reading
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import percent

CLOUD = {"fmt": "o", "ms": 4, "alpha": 0.5, "mew": 0}
"""How many points without errors are drawn."""

ENTROPY = "entropy (nats per token)"

AT = re.compile(r"price/at_(.+)/first_order$")
"""The spending of a class of positions, in the log of a run."""


def trade_off(reading: Reading) -> Iterator[Panel]:
    """ΔJ against ΔH over η, at the rates at which both have an interval."""
    measured = reading.shown(MeasureResult)
    reward = None if measured is None else measured.result.reward
    if measured is None or reward is None:
        return
    result, start = measured.result, reward.at_theta
    pairs = {
        row.eta: (result.change_at(row), gained.change(start))
        for row in result.sweep
        if (gained := reward.at(row.eta)) is not None
    }
    pairs = {eta: both for eta, both in pairs.items() if all(map(has_interval, both))}
    if not pairs:
        return
    changes, gains = zip(*pairs.values(), strict=True)
    marks = [points(changes, gains, MEASURED, "measured")]
    here, at_rate = result.at_rate(), reward.at(result.rate)
    if here is not None:
        marks.append(dashed(here.delta_h, "training rate", "x"))
    quantities = {"J": (start, ""), "first order δJ₁": (reward.first_order, "reward.first_order")}
    if at_rate is not None:
        own = f"reward.sweep[{at_rate.eta:g}].delta_j"
        quantities[f"ΔJ at η = {number(at_rate.eta)}"] = (at_rate.change(start), own)
    eta = result.rate if result.rate in pairs else max(pairs)
    h, j = pairs[eta]
    yield Panel(
        "trade_off",
        "What a step earns for the entropy it costs",
        f"At η = {number(eta)} the step changes entropy by {with_interval(h)} {h.unit} and the "
        f"expected reward, {number(start.value)} before it, by {with_interval(j)}.",
        measured.source("results.json", "sweep.parquet"),
        pd.DataFrame(map(vars, reward.sweep)),
        chart(f"ΔH ({result.unit})", "ΔJ (reward)", *marks, height=310, zero="xy", grid="both"),
        *measured.compared(quantities),
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
    steps, tables, marks = reading.logged("step", "entropy", "reward"), [], []
    if steps is not None:
        label = "training batch"
        marks.append(points(steps["entropy"], steps["reward"], MUTED, label, **CLOUD))
        tables.append(steps[["step", "entropy", "reward"]].assign(of=label))
    both = {"entropy_per_token": "entropy", "reward": "reward"}
    for evaluation in [e for e in reading.evaluations if {*both} <= {*e.table}][:1]:
        x, y = (evaluation.along(metric) for metric in both)
        marks.append(points(x, y, MEASURED, "evaluated", fmt="-o", linewidth=1.2))
        table = evaluation.sampled()[["step", *both]].rename(columns=both)
        tables.append(table.assign(of="evaluation"))
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
        h = np.sort(pd.concat(tables)["entropy"])
        curve = [law(x) for x in h]
        marks.append(line(h, curve, INK, "b − a exp(h)", dashes=(4, 2), linewidth=1))
    yield Panel(
        "plane",
        "Reward against entropy along training",
        " ".join([caption, *(law.warnings if law else ())]),
        reading.training_source() if steps is not None else reading.evaluations[0].source(),
        pd.concat(tables, ignore_index=True),
        chart(ENTROPY, "reward", *marks, height=310, grid="both"),
        fitted,
    )


def within_step(reading: Reading) -> Iterator[Panel]:
    """What each sequence does to entropy and to reward."""
    influence = reading.shown(InfluenceResult)
    reward = None if influence is None else influence.result.reward
    table = None if influence is None else influence.result.tables.get("sequences")
    if influence is None or reward is None or table is None:
        return
    entropy, marks = influence.result.entropy, []
    signs = np.sign(table["advantage"].astype(float).fillna(0.0))
    kinds = {1: ("rewarded (A > 0)", REWARD), -1: ("punished (A < 0)", LOSS)}
    for sign, (label, colour) in (kinds | {0: ("neither (A = 0)", MUTED)}).items():
        rows = table[signs == sign]
        if len(rows):
            marks.append(points(rows["delta_h"], rows["delta_j"], colour, label, **CLOUD))
    wasted = float(((table["delta_h"] < 0) & (table["delta_j"] <= 0)).mean())
    columns = ["sequence", "key", "length", "reward", "advantage", "delta_h", "delta_h_se"]
    x, y = f"δH ({entropy.unit})", f"δJ ({reward.unit})"
    yield Panel(
        "plane_step",
        "What each sequence cost and earned",
        f"{percent(wasted)} of the sequences lower entropy and earn nothing; together they move "
        f"entropy by {with_interval(entropy.gradient)} and reward by "
        f"{with_interval(reward.gradient)} per unit η.",
        influence.source("sequences.parquet"),
        table[[*columns, "delta_j", "delta_j_se"]],
        chart(x, y, *marks, height=310, zero="xy", grid="both", columns=2),
    )


def step_price(reading: Reading) -> Iterator[Panel]:
    """Where the step of a measurement spends entropy, and what it earns there."""
    measured = reading.shown(MeasureResult)
    price = None if measured is None else measured.result.price
    if measured is None or price is None or not price.at:
        return
    whole = price.whole
    said = f"The step changes entropy by {with_interval(whole.first_order)} {measured.result.unit}"
    if whole.reward is not None and whole.reward_for_a_nat is not None:
        said += (
            f" and reward by {with_interval(whole.reward)}: "
            f"{without_error(whole.reward_for_a_nat)} {whole.reward_for_a_nat.unit}"
        )
    if price.cosine is not None and has_interval(price.cosine):
        said += f". The cosine of the gradients of both is {without_error(price.cosine)}"
    rows = [
        {"class": name, "tokens": part.tokens}
        | part.share.columns("share")
        | (part.reward.columns("reward") if part.reward else {})
        for name, part in price.at.items()
    ]
    names = [f"{name}, {part.tokens:.0%} of tokens" for name, part in price.at.items()]
    shares = [part.share for part in price.at.values()]
    yield Panel(
        "price",
        "Where the step spends entropy",
        f"{said}. Classes of positions overlap; first order.",
        measured.source(),
        pd.DataFrame(rows),
        bars(names, shares, "share of the change"),
        {f"share at {name}": part.share for name, part in price.at.items()},
    )


def run_price(reading: Reading) -> Iterator[Panel]:
    """What a run spent and earned, by the readings of its probe."""
    rows = reading.logged("step", "price/first_order")
    if rows is None or len(rows) < 2:
        return
    steps = rows["step"].to_numpy(dtype=float)
    weights = np.diff(steps, append=steps[-1] + np.median(np.diff(steps)))
    spent = _over_run(rows, "price/first_order", weights)
    classes = [m.group(1) for name in rows.columns if (m := AT.match(str(name)))]
    parts = {name: _over_run(rows, f"price/at_{name}/first_order", weights) for name in classes}
    said = (
        f"By {len(rows)} readings, each standing for the steps up to the next, this run changed "
        f"entropy by {with_interval(spent)} to first order"
    )
    if has_interval(spent) and not spent.ci_low <= 0 <= spent.ci_high and parts:
        most = max(parts, key=lambda name: parts[name].value / spent.value)
        said += f", {with_interval(parts[most])} of it at {most.replace('_', ' ')}"
    if "price/reward" in rows:
        said += f", for {with_interval(_over_run(rows, 'price/reward', weights))} of reward"
    names = ["all positions", *(name.replace("_", " ") for name in parts)]
    yield Panel(
        "price_of_run",
        "Where the run spent entropy",
        f"{said}.",
        reading.training_source(),
        rows.filter(regex="^(step$|price/)"),
        bars(names, [spent, *parts.values()], "change of entropy"),
    )


def _over_run(rows: pd.DataFrame, name: str, weights: np.ndarray) -> Estimate:
    """The sum of a logged number over steps; readings are drawn independently."""
    values, errors = (rows[key].to_numpy(dtype=float) for key in (name, f"{name}_se"))
    se = math.sqrt(float(np.nansum((weights * errors) ** 2)))
    value, half = float(np.nansum(weights * values)), t_quantile(len(rows) - 1, 0.95) * se
    return Estimate(value, se, value - half, value + half, len(rows), "", "sum of readings")
