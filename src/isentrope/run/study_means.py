"""The mean of each number of a study over its repeats, fresh update batches.

With N ≥ 2 repeats of a quantity,

    x̄ = Σ_r x_r / N,     SE² = s²/N + mean_{r≠q} C_rq,     C_rq = P/(P−1) Σ_p φ_rp φ_qp

s² the variance between repeats (another draw of U); C_rq the covariance of two repeats that the P
prompts of E cause, which they share, so that it does not fall with N: φ_rp is the influence of
prompt p in repeat r (`influences.parquet` of measure). What E's prompts do to one repeat alone is
in s². Without influences (influence, try, entropies) the mean of SE_r² takes the place of that of
C_rq, which it bounds. Where a verb's own errors are over U's prompts (kernel, noise, audit) they
are in s² already, and the second term is left out; but a few repeats show less of a tail than the
units within them, so the interval is no shorter than t SE_r/√N with the degrees of freedom of the
rows. Each error has its own quantile of Student's t (`t_of_two_errors`). Where an interval was
withheld, so is that of the mean, and where one has no upper end, the mean has none. The mean of a
noise (`NOISES`) and of its ratio follow the rule of noise (`estimators.tail`).

The mean of a ratio is the ratio of the means of its parts (`PARTS_OF_RATIOS`), with Fieller's
interval. A ratio whose parts are not in the table has no mean.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isentrope.estimators.repeats import mean_over_repeats, ratio_of_means
from isentrope.estimators.tail import noise_over_repeats, rare_units
from isentrope.nouns.estimate import within_bounds
from isentrope.nouns.freedom import freedom_of_units, t_quantile

MEAN = "mean"

PARTS_OF_RATIOS = {
    r"linear_range": ("first_order", "second_order"),
    r"(.*)b_simple": (r"\1trace", r"\1gradient_square"),
    r"(classes\.\w+)\.(.*)share_h": (r"\1.\2delta_h", r"\1.gradient"),
    r"price\.momentum": ("budget.momentum", "budget.total"),
    r"(price\.at\..*)\.share": (r"\1.first_order", "price.whole.first_order"),
    r"(.*\.)?(top|b_noise|noise_scale|prompts_\w+|ratio|variance_ratio|share_[hj]|fall)": (),
    r"(.*\.)?(price|design_effect|reward_for_a_nat)": (),
}
"""Quantities that are ratios: what is divided by what; nothing where the table lacks a part."""

NOISES = r"(.*\.)?trace"
"""Quantities that are noises, with the rule of `estimators.tail`; a ratio of one has it too."""

Row = dict[str, Any]


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
        covariance = _covariance_over_prompts(made_of, shared)
        freedom = min(_freedom_of_mean(part, shared) for part in made_of)
        errors = None if shared is not None else [_error_of_rows(part) for part in made_of]
        update = math.nan
        evaluation = math.nan
        if parts is None:
            evaluation = math.sqrt(max(float(covariance[0, 0]), 0.0))
            value, se, half, update = mean_over_repeats(
                _list_values(group, "value"), evaluation, freedom, confidence
            )
            low, high = _interval_of_mean(group, value, half, errors, confidence)
        else:
            value, se, low, high = _estimate_ratio(
                quantity, made_of, covariance, freedom, confidence, errors
            )
        low, high = _withhold_ends(low, high, [row for part in made_of for row in part])
        low, high = within_bounds(value, low, high, group[0]["unit"])
        means.append(
            {key: group[0][key] for key in ("checkpoint", "step", "quantity", "unit")}
            | {"value": value, "se": se, "ci_low": low, "ci_high": high, "repeat": MEAN}
            | {"se_update": update, "se_evaluation": evaluation, "n": len(group)}
        )
    return means


def parts_of_ratio(quantity: str) -> tuple[str, ...] | None:
    """The quantities whose ratio this is; () where they are not known, None if it is no ratio."""
    for pattern, parts in PARTS_OF_RATIOS.items():
        if match := re.fullmatch(pattern, quantity):
            return tuple(match.expand(part) for part in parts)
    return None


def _list_values(group: Sequence[Row], name: str) -> list[float]:
    return [math.nan if row[name] is None else row[name] for row in group]


def _error_of_rows(group: Sequence[Row]) -> tuple[float, float]:
    """Error of a mean that the errors of its rows give, and its degrees of freedom."""
    errors = torch.tensor(_list_values(group, "se"), dtype=torch.float64)
    freedom = sum(row["freedom"] for row in group) / len(group)
    return float(errors.square().mean() / len(group)) ** 0.5, freedom


def _half_width(error_of_rows: tuple[float, float], confidence: float) -> float:
    """Half of the interval by the errors of the rows; 0 where they have none."""
    error, freedom = error_of_rows
    return t_quantile(freedom, confidence) * error if math.isfinite(error) else 0.0


def _interval_of_mean(
    group: Sequence[Row],
    value: float,
    half: float,
    errors: Sequence[tuple[float, float]] | None,
    confidence: float,
) -> tuple[float, float]:
    """The interval of a mean that is no ratio."""
    if errors is not None:
        half = max(half, _half_width(errors[0], confidence))
    if value > 0 and math.isfinite(half) and re.fullmatch(NOISES, group[0]["quantity"]):
        return noise_over_repeats(value, half, _count_units(group), confidence)
    return value - half, value + half


def _count_units(group: Sequence[Row]) -> int:
    return sum(row["n"] for row in group)


def _withhold_ends(low: float, high: float, rows: Sequence[Row]) -> tuple[float, float]:
    """An interval of a mean, less the ends that the interval of a row does not have."""
    ends = [[x for row in rows if (x := row.get(end)) is not None] for end in ("ci_low", "ci_high")]
    if not all(map(math.isfinite, ends[0])) or any(map(math.isnan, ends[1])):
        return math.nan, math.nan
    return low, high if all(map(math.isfinite, ends[1])) else math.inf


def _estimate_ratio(
    quantity: str,
    parts: list[list[Row]],
    covariance: Tensor,
    freedom: float,
    confidence: float,
    errors: Sequence[tuple[float, float]] | None,
) -> tuple[float, float, float, float]:
    """Value, error and interval."""
    tops, bottoms = (_list_values(part, "value") for part in parts)
    signed = "share" in quantity or quantity == "price.momentum"
    sign = "any" if signed else "none" if quantity == "linear_range" else "plus"
    value, se, low, high = ratio_of_means(
        tops, bottoms, covariance, freedom=freedom, confidence=confidence, sign=sign
    )
    if errors is not None and re.fullmatch(NOISES, parts[0][0]["quantity"]):
        mean, _, half, _ = mean_over_repeats(tops, 0.0, freedom, confidence)
        longer = 1.0
        if mean > 0:
            excess = max(_half_width(errors[0], confidence) - half, 0.0)
            longer = math.exp(min(excess / mean, 700.0))
        rare = rare_units(torch.ones(_count_units(parts[0])), confidence)
        low /= longer
        high *= longer * rare
    value = abs(value) if sign == "none" else value if sign == "any" or value > 0 else math.inf
    return value, se, low, high


def _freedom_of_mean(group: list[Row], shared: Mapping[str, Tensor] | None) -> float:
    """Degrees of freedom of the error over E's prompts of a mean."""
    influences = (shared or {}).get(group[0]["quantity"])
    if influences is None:
        return group[0]["freedom"]
    return max(freedom_of_units(influences.sum(0)), 1.0)


def _covariance_over_prompts(
    groups: list[list[Row]], shared: Mapping[str, Tensor] | None
) -> Tensor:
    """Covariance of the means of some quantities that E's prompts cause; 0 without errors."""
    m = len(groups)
    if shared is None:
        return torch.zeros(m, m, dtype=torch.float64)
    names = [group[0]["quantity"] for group in groups]
    if any(name not in shared for name in names):
        errors = torch.tensor([_list_values(group, "se") for group in groups], dtype=torch.float64)
        return errors.square().mean(1).diag()
    phi = torch.stack([shared[name] for name in names])  # (m, N, P)
    n, prompts = phi.shape[1:]
    total = phi.sum(1)
    across = total @ total.T - torch.einsum("arp,brp->ab", phi, phi)  # over pairs r ≠ q
    covariance = prompts / max(prompts - 1, 1) * across / (n * (n - 1))
    if prompts < 2 or not bool(covariance.isfinite().all()):
        return torch.full_like(covariance, math.nan)
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * values.clamp_min(0) @ vectors.T  # no error is less than none
