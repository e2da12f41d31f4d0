"""What was earned for entropy: where it is spent, and the exploration–exploitation plane.

At one checkpoint: ΔJ(η) against ΔH(η), rate by rate. Along training: reward against entropy, one
point per step or per evaluated checkpoint, and the law R = b − a exp(h) that is fitted to the
steps. Within one step: (δH_i, δJ_i) of every sequence.
"""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from isentrope.evaluation.entropy_law import EntropyLaw, fit_entropy_law
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import t_quantile
from isentrope.reports.drawing import (
    INK,
    LOSS,
    MEASURED,
    MUTED,
    REWARD,
    Bars,
    Chart,
    Mark,
    Series,
    dashed,
)
from isentrope.reports.evaluations import unit_of_log
from isentrope.reports.panel import Panel
from isentrope.reports.panels.change import at_rate, change_at_rate
from isentrope.reports.read_run import Reading
from isentrope.results.answers.blocks import has_interval, short
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.system.formatting import percent

CLOUD = {"ms": 4, "alpha": 0.5, "mew": 0}
"""How many points without errors are drawn."""

AT = re.compile(r"price/at_(.+)/first_order$")
"""The spending of a class of positions, in the log of a run."""


def trade_off(reading: Reading) -> Iterator[Panel]:
    """ΔJ against ΔH over η, at the rates at which both have an interval."""
    measured = reading.shown(MeasureResult)
    result = measured.result
    reward = result.reward
    if reward is None:
        return
    pairs = list[tuple[Estimate, Estimate]]()
    for row in result.sweep:
        if (gained := reward.at(row.eta)) is not None:
            pair = (row.best, gained.change)
            pairs += [pair] if all(map(has_interval, pair)) else []
    if not pairs:
        return
    changes, gains = zip(*pairs, strict=True)
    marks: list[Mark] = [Series("measured", MEASURED, changes, gains)]
    if (change := change_at_rate(result)) is not None:
        marks.append(dashed(change.value, result.rate_name, "x"))
    paths = {
        "J": "reward.at_theta",
        "first order δJ₁": "reward.first_order",
        f"ΔJ {at_rate(result, 'reward')}": "reward.sweep[{rate}].delta_j",
    }
    yield Panel(
        measured.source,
        "trade_off",
        "What a step earns for the entropy it costs",
        "A point per learning rate at which both have an interval.",
        Chart(f"ΔH ({result.unit})", {"ΔJ (reward)": marks}),
        *measured.at(paths),
    )


def law_of(reading: Reading) -> EntropyLaw | None:
    """The law of a run, fitted to its training log; None where that cannot fix it."""
    rows = reading.logged("entropy", "reward")
    try:
        return fit_entropy_law(*(rows[name].to_list() for name in ("entropy", "reward")))
    except (KeyError, ValueError):  # too few steps, or an entropy that never moved
        return None


def along_training(reading: Reading) -> Iterator[Panel]:
    """Reward against entropy, of training batches and of evaluated checkpoints."""
    steps = reading.logged("step", "entropy", "reward")
    marks = list[Mark]()
    if len(steps):
        x, y = (steps[name].tolist() for name in ("entropy", "reward"))
        marks.append(Series("training batch", MUTED, x, y, "o", CLOUD))
    for evaluation in reading.evaluations[:1]:
        metrics = [row.metrics for _, row in evaluation.sampled()]
        if points := [m for m in metrics if m.get("entropy_per_token") and m.get("reward")]:
            x, y = ([m[name] for m in points] for name in ("entropy_per_token", "reward"))
            marks.append(Series("evaluated", MEASURED, x, y, "-o", {"linewidth": 1.2}))
    if not marks:
        return
    caption = "Training goes from high entropy to low."
    law = law_of(reading)
    fitted = {}
    if law is not None and not law.misfits:
        fitted = {"a of the law": law.a, "reward at no entropy": law.ceiling}
        h = np.sort(steps["entropy"].to_numpy())
        style = {"dashes": (4, 2), "linewidth": 1}
        marks.append(Series("b − a exp(h)", INK, h, [law(x) for x in h], "-", style))
        caption = (
            "The law R = b − a exp(h), fitted to the training batches, has R² = "
            f"{short(law.r_squared, 2)}. A quadratic term shows no misfit; it would miss that of "
            "most runs whose reward is linear in log h."
        )
    yield Panel(
        reading.source if len(steps) else reading.evaluations[0].source,
        "plane",
        "Reward against entropy along training",
        " ".join([caption, *(law.warnings if law else ())]),
        Chart("entropy (nats per token)", {"reward": marks}),
        fitted,
    )


def within_step(reading: Reading) -> Iterator[Panel]:
    """What each sequence does to entropy and to reward."""
    influence = reading.shown(InfluenceResult)
    entropy = influence.result.entropy
    reward = influence.result.reward
    table = influence.result.tables.get("sequences")
    marks = list[Mark]()
    if reward is None or table is None:
        return
    signs = np.sign(table["advantage"].astype(float).fillna(0.0))
    for label, sign, colour, shape in (
        ("rewarded (A > 0)", 1, REWARD, "o"),
        ("punished (A < 0)", -1, LOSS, "v"),
        ("neither (A = 0)", 0, MUTED, "s"),
    ):
        x, y = (table[signs == sign][name].tolist() for name in ("delta_h", "delta_j"))
        marks += [Series(label, colour, x, y, shape, CLOUD)] if x else []
    yield Panel(
        influence.source,
        "plane_step",
        "What each sequence cost and earned",
        _wasted(influence.result, table),
        Chart(f"δH ({entropy.unit})", {f"δJ ({reward.unit})": marks}),
        *influence.at({"entropy": "entropy.gradient", "reward": "reward.gradient"}),
    )


def _wasted(result: InfluenceResult, table: pd.DataFrame) -> str:
    """How many sequences lower entropy and earn nothing, as far as the interval of each tells."""
    confidence = result.estimator.confidence
    t = t_quantile(max(result.groups - 1, 1), confidence)
    half_h = t * table["delta_h_se"]
    half_j = t * table["delta_j_se"]
    yes = (table["delta_h"] + half_h < 0) & (table["delta_j"] + half_j <= 0)
    no = (table["delta_h"] - half_h >= 0) | (table["delta_j"] - half_j > 0)
    waste, useful = (percent(float(flags.mean())) for flags in (yes, no))
    return (
        f"By the {percent(confidence)} interval of each, {waste} of the sequences lower entropy "
        f"and earn nothing, and {useful} do not; of the others it is not known."
    )


def step_price(reading: Reading) -> Iterator[Panel]:
    """Where the step of a measurement spends entropy, and what it earns there."""
    measured = reading.shown(MeasureResult)
    result = measured.result
    price = result.price
    if price is None or not price.at:
        return
    paths = {
        f"change of entropy {at_rate(result, result.unit)}": "price.whole.first_order",
        f"of reward {at_rate(result, 'reward')}": "price.whole.reward",
        "reward for a nat": "price.whole.reward_for_a_nat",
        "cosine of the gradients of both": "price.cosine",
    }
    shares = {name: part.share for name, part in price.at.items() if part.share is not None}
    written = {name: f"{name}, {part.tokens:.0%} of tokens" for name, part in price.at.items()}
    yield Panel(
        measured.source,
        "price",
        "Where the step spends entropy",
        "Classes of positions overlap; first order.",
        Bars("share of the change", shares, written=written, changes=False),
        *measured.at(paths),
    )


def run_price(reading: Reading) -> Iterator[Panel]:
    """What a run spent and earned, by the readings of its probe."""
    rows = reading.logged("step", "price/first_order")
    if len(rows) < 2:
        return
    steps = rows["step"].to_numpy(dtype=float)
    weights = np.diff(steps, append=steps[-1] + np.median(np.diff(steps)))

    def over_run(name: str) -> Estimate:
        """The sum of a logged number over steps; readings are drawn independently."""
        values, errors = (rows[key].to_numpy(dtype=float) for key in (name, f"{name}_se"))
        value = float(np.nansum(weights * values))
        se = float(np.sqrt(np.nansum((weights * errors) ** 2)))
        method = "sum of readings"
        return Estimate.from_standard_error(value, se, len(rows), unit="", method=method)

    matches = [AT.match(str(name)) for name in rows.columns]
    classes = [match[1] for match in matches if match]
    spent = {"all positions": over_run("price/first_order")}
    spent |= {name.replace("_", " "): over_run(f"price/at_{name}/first_order") for name in classes}
    numbers = {"reward": over_run("price/reward")} if "price/reward" in rows else {}
    yield Panel(
        reading.source,
        "price_of_run",
        "Where the run spent entropy",
        f"By {len(rows)} readings, each standing for the steps up to the next, to first order.",
        Bars(f"change of entropy ({unit_of_log(reading.config, 'price/first_order')})", spent),
        numbers,
    )
