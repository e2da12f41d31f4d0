"""Every number of a study in one tidy table, and its mean over fresh update batches.

A row is one quantity of one checkpoint and repeat: checkpoint, step, repeat, quantity, value, se,
ci_low, ci_high, n, unit. With N ≥ 2 repeats there is a row "mean" more,

    x̄ = Σ_r x_r / N,     SE² = s²/N + mean_{r≠q} C_rq,     C_rq = P/(P−1) Σ_p φ_rp φ_qp

s² the variance between repeats (another draw of U); C_rq the covariance of two repeats that the P
prompts of E cause, which they share, so that it does not fall with N: φ_rp is the influence of
prompt p in repeat r (`influences.parquet` of measure). What E's prompts do to one repeat alone is
in s². Without influences (influence, try, entropies) the mean of SE_r² takes the place of that of
C_rq, which it bounds. Where a verb's own errors are over U's prompts (kernel, noise, audit) they
are in s² already, and the second term is left out. Each error has its own quantile of Student's t
(`t_of_two_errors`); where an interval was withheld, so is that of the mean.

The mean of a ratio is the ratio of the means of its parts (`RATIOS`), with Fieller's interval. A
ratio whose parts are not in the table has no mean.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.ratio import mean_over_repeats, ratio_of_means
from isentrope.nouns.estimate import COLUMNS, Estimate, freedom_of_units, within_bounds
from isentrope.results.attributions import EntropyRecord
from isentrope.results.result import Result, Tables
from isentrope.results.sweep import AtRate
from isentrope.results.verbs import Verb
from isentrope.runs.study import Item, Study
from isentrope.system.file_contents import csv, parquet
from isentrope.system.files import write_bytes

MEAN = "mean"

RATIOS = {
    r"linear_range": ("first_order", "second_order"),
    r"(.*)b_simple": (r"\1trace", r"\1gradient_square"),
    r"(classes\.\w+)\.(.*)share_h": (r"\1.\2delta_h", r"\1.gradient"),
    r"price\.momentum": ("budget.momentum", "budget.total"),
    r"(price\.at\..*)\.share": (r"\1.first_order", "price.whole.first_order"),
    r"(.*\.)?(top|b_noise|noise_scale|prompts_\w+|ratio|variance_ratio|share_[hj]|fall)": (),
    r"(.*\.)?(price|design_effect|reward_for_a_nat)": (),
}
"""Quantities that are ratios: what is divided by what; nothing where the table lacks a part."""

_NOT_NUMBERS = {"checks", *(field.name for field in fields(Result))}

Row = dict[str, Any]


def study_table(verb: Verb, study: Study) -> pd.DataFrame:
    """The tidy table of a study.

    Args:
        verb: What was done.
        study: Items that are all done.

    Returns:
        The rows above; of a mean also se_update = s/√N and se_evaluation.
    """
    rows: list[Row] = []
    means: list[Row] = []
    confidence = study.items[0].config.estimator.confidence
    for _, group in groupby(study.items, key=lambda item: item.subject.name):
        items, mine = list(group), []
        for item in items:
            result = item.result()
            at_most = max(result.batches.E.prompt_draws - 1, 1)
            for quantity, numbers in numbers_in(vars(result)):
                own = numbers["degrees_of_freedom"]
                freedom = at_most if own is None else max(own, 1)
                mine.append({**_place(item), "quantity": quantity, **numbers, "freedom": freedom})
        rows += mine
        shared = _influences(items) if verb.errors_over_E else None
        means += means_over_repeats(mine, shared, confidence)
    return pd.DataFrame(rows + means).drop(columns=["freedom", "degrees_of_freedom"])


def write_study(verb: Verb, study: Study) -> None:
    """Write the tables of a study of several items; a single one has its own already."""
    if len(study.items) == 1:
        return
    folder = study.folder / "measurements"
    name = verb.joined or f"{verb.name}_all"
    parts = [Tables(item.target)[verb.table].assign(**_place(item)) for item in study.items]
    write_bytes(folder / f"{name}.parquet", parquet(pd.concat(parts, ignore_index=True)))
    write_bytes(folder / f"{verb.name}_study.csv", csv(study_table(verb, study)))


def numbers_in(content: Mapping[str, object], path: str = "") -> Iterator[tuple[str, Row]]:
    """Every number that has an error, by its dotted path.

    Args:
        content: The fields of a result, or of a part of it.
        path: Where the part is.

    Yields:
        Path and value, se, ci_low, ci_high, n, unit: of an Estimate, or of k with k_se beside it;
        degrees_of_freedom.
    """
    for key, value in content.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Estimate):
            yield here, value.columns() | {name: getattr(value, name) for name in _ABOUT}
        elif here in _NOT_NUMBERS:
            continue
        elif isinstance(value, tuple):
            for row in value:
                if isinstance(row, AtRate | EntropyRecord):
                    yield from numbers_in(vars(row), f"{here}{row.place}")
        elif isinstance(value, Mapping) or is_dataclass(value):
            yield from numbers_in(value if isinstance(value, Mapping) else vars(value), here)
        elif f"{key}_se" in content:
            numbers = {column: content.get(key + end) for column, end in COLUMNS.items()}
            yield here, numbers | dict.fromkeys(_ABOUT)


_ABOUT = ("n", "unit", "degrees_of_freedom")


def _place(item: Item) -> Row:
    return {"checkpoint": item.subject.name, "step": item.subject.step, "repeat": item.repeat}


def _influences(items: list[Item]) -> dict[str, Tensor]:
    """(N, P) influences of E's prompts on what all items have, by quantity."""
    tables = [Tables(item.target) for item in items]
    if not all("influences" in of for of in tables):
        return {}
    every = pd.concat([of["influences"].assign(repeat=r) for r, of in enumerate(tables)])
    wide = every.pivot(index=["quantity", "repeat"], columns="prompt", values="influence")
    found = {str(q): torch.tensor(rows.to_numpy()) for q, rows in wide.groupby("quantity")}
    return {q: phi for q, phi in found.items() if len(phi) == len(items)}


def means_over_repeats(
    rows: Sequence[Row], shared: Mapping[str, Tensor] | None, confidence: float
) -> list[Row]:
    """The means over the repeats of one checkpoint.

    Args:
        rows: Of all repeats.
        shared: Influences of the prompts that the repeats share, by quantity; None where the errors
            are not over them.
        confidence: Nominal coverage.

    Returns:
        A row per quantity that more than one repeat has.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["quantity"], []).append(row)
    means = []
    for quantity, group in groups.items():
        parts = parts_of_ratio(quantity)
        made_of = [groups.get(part, []) for part in ((quantity,) if parts is None else parts)]
        if len(group) < 2 or not made_of or any(len(part) != len(group) for part in made_of):
            continue
        covariance = _covariance(made_of, shared)
        freedom = min(_freedom_of_mean(part, shared) for part in made_of)
        update, evaluation = math.nan, math.nan
        if parts is None:
            evaluation = math.sqrt(max(float(covariance[0, 0]), 0.0))
            about = evaluation, freedom, confidence
            value, se, half, update = mean_over_repeats(_column(group, "value"), *about)
            low, high = value - half, value + half
        else:
            value, se, low, high = _ratio(quantity, made_of, covariance, freedom, confidence)
        ends = [row["ci_low"] for part in made_of for row in part]
        if not all(math.isfinite(end) for end in ends if isinstance(end, float)):  # one is withheld
            low, high = math.nan, math.nan
        low, high = within_bounds(value, low, high, group[0]["unit"])
        means.append(
            {key: group[0][key] for key in ("checkpoint", "step", "quantity", "unit")}
            | {"value": value, "se": se, "ci_low": low, "ci_high": high, "repeat": MEAN}
            | {"se_update": update, "se_evaluation": evaluation, "n": len(group)}
        )
    return means


def parts_of_ratio(quantity: str) -> tuple[str, ...] | None:
    """The quantities whose ratio this is; () where they are not known, None if it is no ratio."""
    for pattern, parts in RATIOS.items():
        if found := re.fullmatch(pattern, quantity):
            return tuple(found.expand(part) for part in parts)
    return None


def _column(group: Sequence[Row], name: str) -> list[float]:
    return [math.nan if row[name] is None else row[name] for row in group]


def _ratio(
    quantity: str, parts: list[list[Row]], covariance: Tensor, freedom: float, confidence: float
) -> tuple[float, float, float, float]:
    """Value, error and interval."""
    tops, bottoms = (_column(part, "value") for part in parts)
    signed = "share" in quantity or quantity == "price.momentum"
    sign = "any" if signed else "none" if quantity == "linear_range" else "plus"
    value, se, low, high = ratio_of_means(
        tops, bottoms, covariance, freedom=freedom, confidence=confidence, sign=sign
    )
    value = abs(value) if sign == "none" else value if sign == "any" or value > 0 else math.inf
    return value, se, low, high


def _freedom_of_mean(group: list[Row], shared: Mapping[str, Tensor] | None) -> float:
    """Degrees of freedom of the error over E's prompts of a mean."""
    influences = (shared or {}).get(group[0]["quantity"])
    if influences is None:
        return group[0]["freedom"]
    return max(freedom_of_units(influences.sum(0)), 1.0)


def _covariance(groups: list[list[Row]], shared: Mapping[str, Tensor] | None) -> Tensor:
    """Covariance of the means of some quantities that E's prompts cause; 0 without errors."""
    m = len(groups)
    if shared is None:
        return torch.zeros(m, m, dtype=torch.float64)
    names = [group[0]["quantity"] for group in groups]
    if any(name not in shared for name in names):
        errors = torch.tensor([_column(of, "se") for of in groups], dtype=torch.float64)
        return errors.square().mean(1).diag()
    phi = torch.stack([shared[name] for name in names])  # (m, N, P)
    n, prompts = phi.shape[1:]
    total = phi.sum(1)
    across = total @ total.T - torch.einsum("arp,brp->ab", phi, phi)  # over pairs r ≠ q
    found = prompts / max(prompts - 1, 1) * across / (n * (n - 1))
    if prompts < 2 or not bool(found.isfinite().all()):
        return torch.full_like(found, math.nan)
    values, vectors = torch.linalg.eigh((found + found.T) / 2)
    return vectors * values.clamp_min(0) @ vectors.T  # no error is less than none
