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

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.ratio import ends_of_ratio, ratio_of_means, t_of_two_errors
from isentrope.nouns.estimate import Estimate, freedom_of_units, within_bounds
from isentrope.results.attributions import IN_FILE, EntropyRecord
from isentrope.results.result import Result, Tables
from isentrope.results.sweep import RewardRow, SweepRow
from isentrope.results.verbs import Verb
from isentrope.runs.study import Item, Study
from isentrope.system.file_contents import csv, parquet
from isentrope.system.files import write_bytes

MEAN = "mean"

RATIOS = {
    r"linear_range": ("first_order", "second_order"),
    r"(.*)b_simple": (r"\1trace", r"\1gradient_square"),
    r"(classes\.\w+)\.(.*)share_h": (r"\1.\2delta_h", r"\1.gradient"),
    r"(.*\.)?(top|b_noise|noise_scale|prompts_\w+|ratio|variance_ratio|share_[hj]|fall)": None,
    r"(.*\.)?(price|design_effect)": None,
}
"""Quantities that are ratios: what is divided by what; None where the table lacks a part."""

_NOT_NUMBERS = (
    *("provenance", "timing", "policy", "batches", "checks", "step", "estimator", "settings"),
    *("tables", "warnings", "save_more", "finish"),
)


def study_table(verb: Verb, study: Study) -> pd.DataFrame:
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
    means = []
    for name, of in table.groupby("checkpoint", sort=False):
        items = [item for item in study.items if item.subject.name == name]
        if len(items) > 1:
            shared = _influences(items) if verb.errors_over_E else None
            means += Means(of, shared, confidence).rows()
    table = table.drop(columns=["freedom", "degrees_of_freedom", "withheld"])
    return pd.concat([table, pd.DataFrame(means)], ignore_index=True) if means else table


def write_study(verb: Verb, study: Study) -> None:
    """Write the tables of a study of several items; a single one has its own already."""
    if len(study.items) == 1:
        return
    folder = study.folder / "measurements"
    name = verb.joined or f"{verb.name}_all"
    write_bytes(folder / f"{name}.parquet", parquet(joined_tables(study, verb.table)))
    write_bytes(folder / f"{verb.name}_study.csv", csv(study_table(verb, study)))


def joined_tables(study: Study, name: str) -> pd.DataFrame:
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
                elif isinstance(row, EntropyRecord):
                    yield from numbers_in(vars(row), f"{here}[{row.batch}].{row.definition}")
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


def _influences(items: list[Item]) -> dict[str, Tensor]:
    """(N, P) influences of E's prompts on what all items have, by quantity."""
    tables = [Tables(item.target) for item in items]
    if not all("influences" in of for of in tables):
        return {}
    columns = [
        {str(q): part.sort_values("prompt")["influence"].to_numpy() for q, part in by_quantity}
        for by_quantity in (of["influences"].groupby("quantity") for of in tables)
    ]
    shared = [q for q in columns[0] if len({len(of.get(q, ())) for of in columns}) == 1]
    return {q: torch.tensor([of[q].tolist() for of in columns]).double() for q in shared}


@dataclass(frozen=True)
class Means:
    """The means over the repeats of one checkpoint.

    Attributes:
        table: Rows of all repeats.
        shared: Influences of the prompts that the repeats share, by quantity; None where the errors
            are not over them.
        confidence: Nominal coverage.
    """

    table: pd.DataFrame
    shared: dict[str, Tensor] | None
    confidence: float

    def rows(self) -> list[dict[str, Any]]:
        """A row per quantity that more than one repeat has."""
        groups = {str(q): of for q, of in self.table.groupby("quantity", sort=False)}
        rows = []
        for quantity, group in groups.items():
            parts = parts_of_ratio(quantity)
            if len(group) < 2 or parts == ():
                continue
            if parts is None:
                rows.append(self._mean(quantity, group))
            elif all(part in groups and len(groups[part]) == len(group) for part in parts):
                rows.append(self._ratio(quantity, group, *(groups[part] for part in parts)))
        return rows

    def _mean(self, quantity: str, group: pd.DataFrame) -> dict[str, Any]:
        n, values = len(group), group["value"].astype(float)
        update = float(values.std()) / math.sqrt(n)
        variance = float(self._covariance([(quantity, group)])[0, 0])
        evaluation = math.sqrt(max(variance, 0.0))
        se = math.hypot(update, evaluation)
        freedom = self._freedom(group)
        half = t_of_two_errors(update, evaluation, n, freedom, self.confidence) * se
        value = float(values.mean(skipna=False))
        ends = value - half, value + half
        return _row(group, (value, se, *ends), (update, evaluation))

    def _ratio(
        self, quantity: str, group: pd.DataFrame, top: pd.DataFrame, bottom: pd.DataFrame
    ) -> dict[str, Any]:
        pair = [(str(of.iloc[0]["quantity"]), of) for of in (top, bottom)]
        tops, bottoms = (of["value"].astype(float).tolist() for of in (top, bottom))
        covariance = self._covariance(pair)
        freedom = min(self._freedom(of) for of in (top, bottom))
        value, se, *found = ratio_of_means(
            tops, bottoms, covariance, freedom=freedom, confidence=self.confidence
        )
        sign = "any" if "share" in quantity else "none" if quantity == "linear_range" else "plus"
        ends = (math.nan, math.nan) if math.isnan(se) else ends_of_ratio(*found, sign=sign)
        value = abs(value) if sign == "none" else value if sign == "any" or value > 0 else math.inf
        withheld = pd.concat([top, bottom])["withheld"]
        return _row(group.assign(withheld=bool(withheld.any())), (value, se, *ends))

    def _freedom(self, of: pd.DataFrame) -> float:
        """Degrees of freedom of the error over E's prompts of a mean."""
        first = of.iloc[0]
        if self.shared is None or first["quantity"] not in self.shared:
            return first["freedom"]
        return max(freedom_of_units(self.shared[first["quantity"]].sum(0)), 1.0)

    def _covariance(self, of: list[tuple[str, pd.DataFrame]]) -> Tensor:
        """Covariance of the means of some quantities that E's prompts cause; 0 without errors."""
        m = len(of)
        if self.shared is None:
            return torch.zeros(m, m, dtype=torch.float64)
        if any(quantity not in self.shared for quantity, _ in of):
            squares = [
                float((group["se"].astype(float) ** 2).mean(skipna=False)) for _, group in of
            ]
            return torch.tensor(squares, dtype=torch.float64).diag()
        phi = torch.stack([self.shared[quantity] for quantity, _ in of])  # (m, N, P)
        n, prompts = phi.shape[1:]
        total = phi.sum(1)
        across = total @ total.T - torch.einsum("arp,brp->ab", phi, phi)  # over pairs r ≠ q
        found = prompts / max(prompts - 1, 1) * across / (n * (n - 1))
        if prompts < 2 or not bool(found.isfinite().all()):
            return torch.full_like(found, math.nan)
        values, vectors = torch.linalg.eigh((found + found.T) / 2)
        return vectors * values.clamp_min(0) @ vectors.T  # no error is less than none


def parts_of_ratio(quantity: str) -> tuple[str, ...] | None:
    """The quantities whose ratio this is; () where they are not known, None if it is no ratio."""
    for pattern, parts in RATIOS.items():
        if found := re.fullmatch(pattern, quantity):
            return tuple(found.expand(part) for part in parts or ())
    return None


def _row(
    group: pd.DataFrame,
    numbers: tuple[float, float, float, float],
    errors: tuple[float, float] = (math.nan, math.nan),
) -> dict[str, Any]:
    first, withheld = group.iloc[0], bool(group["withheld"].any())
    value, se, low, high = numbers
    low, high = within_bounds(low, high, first["unit"])
    return {
        "checkpoint": first["checkpoint"],
        "step": first["step"],
        "repeat": MEAN,
        "quantity": first["quantity"],
        "value": value,
        "se": se,
        "ci_low": math.nan if withheld else low,
        "ci_high": math.nan if withheld else high,
        "n": len(group),
        "unit": first["unit"],
        "se_update": errors[0],
        "se_evaluation": errors[1],
    }


def _freedom(result: Result, numbers: dict[str, Any]) -> float:
    """Degrees of freedom of an error over E: its own, or E's prompts less one."""
    own = numbers["degrees_of_freedom"]
    return max(result.batches.E.prompt_draws - 1 if own is None else own, 1)
