"""Every number of a study in one tidy table, and its mean over fresh update batches.

A row is one quantity of one checkpoint and repeat: checkpoint, step, repeat, quantity, value, se,
ci_low, ci_high, n, unit. With N ≥ 2 repeats there is a row "mean" more,

    x̄ = Σ_r x_r / N,     SE² = s²/N + mean_r SE_r²

s² the variance between repeats (another draw of U); SE_r the error over E's prompts, which the
repeats share, so that it does not fall with N. Where a verb's own errors are over U's prompts
(kernel, noise, audit) they are in s² already, and the second term is left out. Intervals are t,
with Satterthwaite's degrees of freedom; where an interval was withheld, so is that of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import pandas as pd

from isentrope.estimate import Estimate, t_quantile
from isentrope.file_contents import csv, parquet
from isentrope.files import write_bytes
from isentrope.runs.attribution_records import IN_FILE
from isentrope.runs.measure_records import SweepRow
from isentrope.runs.result import Result, Tables
from isentrope.runs.reward_records import RewardRow
from isentrope.runs.study import Item, Study

ERRORS_OVER_E = ("measure", "influence", "try")
"""Verbs whose errors are over the prompts of E, which all repeats share."""

MEAN = "mean"

_NOT_NUMBERS = (
    *("provenance", "timing", "policy", "batches", "checks", "step", "estimator", "settings"),
    *("tables", "warnings", "save_more", "finish"),
)


def study_table(verb: str, study: Study) -> pd.DataFrame:
    """The tidy table of a study.

    Args:
        verb: What was done.
        study: Items that are all done.

    Returns:
        The rows above; of a mean also se_update = s/√N and se_evaluation.
    """
    results = [(item, item.result()) for item in study.items]
    rows = [
        {**_place(item), "quantity": quantity, "freedom": _freedom(result, numbers), **numbers}
        for item, result in results
        for quantity, numbers in numbers_in(vars(result))
    ]
    table = pd.DataFrame(rows)
    confidence = study.items[0].config.estimator.confidence
    means = [
        _mean(group, verb in ERRORS_OVER_E, confidence)
        for _, group in table.groupby(["checkpoint", "quantity"], sort=False)
        if len(group) > 1
    ]
    table = table.drop(columns=["freedom", "degrees_of_freedom", "withheld"])
    return pd.concat([table, pd.DataFrame(means)], ignore_index=True) if means else table


def write_study(verb: str, study: Study, *, table: str, name: str) -> None:
    """Write the tables of a study of several items; a single one has its own already.

    Args:
        verb: What was done.
        study: Items that are all done.
        table: The table that every item has, to be joined.
        name: What the joined one is called.
    """
    if len(study.items) == 1:
        return
    folder = study.folder / "measurements"
    write_bytes(folder / f"{name}.parquet", parquet(joined(study, table)))
    write_bytes(folder / f"{verb}_study.csv", csv(study_table(verb, study)))


def joined(study: Study, name: str) -> pd.DataFrame:
    """A table that every item has, one below the other."""
    parts = [Tables(i.target)[name].assign(**_place(i)) for i in study.items]
    return pd.concat(parts, ignore_index=True)


def numbers_in(
    content: Mapping[str, object], path: str = ""
) -> Iterator[tuple[str, dict[str, object]]]:
    """Every number that has an error, by its dotted path.

    Args:
        content: The fields of a result, or of a part of it.
        path: Where the part is.

    Yields:
        Path and value, se, ci_low, ci_high, n, unit: of an Estimate, or of k with k_se beside it;
        degrees_of_freedom, and whether an interval was withheld.
    """
    for key, value in content.items():
        here = f"{path}.{IN_FILE.get(key, key)}" if path else key
        if isinstance(value, Estimate):
            numbers: dict[str, object] = {key: getattr(value, key) for key in _COLUMNS}
            yield here, numbers | {"withheld": _withheld(value.ci_low)}
        elif here in _NOT_NUMBERS:
            continue
        elif isinstance(value, tuple):
            for row in value:
                if isinstance(row, SweepRow | RewardRow):
                    yield from numbers_in(vars(row), f"{here}[{row.eta:g}]")
        elif isinstance(value, Mapping) or is_dataclass(value):
            yield from numbers_in(value if isinstance(value, Mapping) else vars(value), here)
        elif f"{key}_se" in content:
            parts = {"se": "se", "ci_low": "ci_low", "ci_high": "ci_high"}
            beside = {k: content.get(f"{key}_{part}") for k, part in parts.items()}
            withheld = f"{key}_ci_low" in content and _withheld(beside["ci_low"])
            nothing = dict.fromkeys(("n", "unit", "degrees_of_freedom"))
            yield here, {"value": value, **beside, **nothing, "withheld": withheld}


def _withheld(end: object) -> bool:
    return isinstance(end, float) and not math.isfinite(end)


_COLUMNS = ("value", "se", "ci_low", "ci_high", "n", "unit", "degrees_of_freedom")


def _place(item: Item) -> dict[str, Any]:
    return {"checkpoint": item.subject.name, "step": item.subject.step, "repeat": item.repeat}


def _mean(group: pd.DataFrame, over_E: bool, confidence: float) -> dict[str, Any]:
    first, n = group.iloc[0], len(group)
    values = group["value"].astype(float)
    update = float(values.std()) / math.sqrt(n)
    squares = group["se"].astype(float) ** 2
    evaluation = math.sqrt(float(squares.mean(skipna=False))) if over_E else 0.0
    se = math.hypot(update, evaluation)
    half = t_of_two_errors(update, evaluation, n, first["freedom"], confidence) * se
    if bool(group["withheld"].any()):
        half = math.nan
    value = float(values.mean(skipna=False))
    return {
        "checkpoint": first["checkpoint"],
        "step": first["step"],
        "repeat": MEAN,
        "quantity": first["quantity"],
        "value": value,
        "se": se,
        "ci_low": value - half,
        "ci_high": value + half,
        "n": n,
        "unit": first["unit"],
        "se_update": update,
        "se_evaluation": evaluation,
    }


def _freedom(result: Result, numbers: dict[str, Any]) -> float:
    """Degrees of freedom of an error over E: its own, or E's prompts less one."""
    own = numbers["degrees_of_freedom"]
    return max(result.batches.E.prompt_draws - 1 if own is None else own, 1)


def t_of_two_errors(
    update: float, evaluation: float, n: int, freedom: float, confidence: float = 0.95
) -> float:
    """Quantile for the sum of two variances, each known from its own number of draws.

    Args:
        update: Error over repeats.
        evaluation: Error over prompts.
        n: Repeats, 2 or more.
        freedom: Degrees of freedom of the error over prompts.
        confidence: Nominal coverage.

    Returns:
        The factor from the whole error to half of an interval, by Satterthwaite's degrees of
        freedom; 0 without an error.
    """
    if not math.hypot(update, evaluation) > 0:
        return 0.0
    spread = update**4 / (n - 1) + evaluation**4 / freedom
    both = (update**2 + evaluation**2) ** 2 / spread if spread > 0 else math.inf
    return t_quantile(both, confidence)
