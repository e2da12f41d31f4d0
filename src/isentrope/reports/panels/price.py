"""What entropy bought: where a step spends it and what it earns, and the same over a run."""

import math
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from isentrope.nouns.estimate import Estimate, t_quantile
from isentrope.reports.drawing import bars
from isentrope.reports.panel import Panel, has_interval, with_interval, without_error
from isentrope.reports.read_run import Reading
from isentrope.results.results import MeasureResult

AT = re.compile(r"price/at_(.+)/first_order$")


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
