"""How well a proxy agrees with a measured influence, item i counting w_i times (T9).

    pearson, spearman            correlation of proxy x and influence y, and of their ranks
    pearson_size, spearman_size  the same of |x| and |y|
    sign_agreement               share of the items with x, y ≠ 0 on which the signs are equal
    sign_agreement_weighted      the same, each item counting |y|
    overlap@q                    |top of |x| ∩ top of |y|| / k, the k largest sizes
    overlap_negative@q           the same for the k most negative
    negative_share@q             share of Σ min(y, 0) on the k items where x is most negative

with k = max(1, round(q Σ w)), at least one item.
Ranks, signs and tops are those of `score_column`. Where both tops hold a share of an item the
smaller one is common, so a proxy equal to y overlaps fully.
A proxy without sign has sizes and overlap@q, and its negative_share@q is on the k largest |x|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from isentrope.attribution.mid_ranks import Array
from isentrope.attribution.proxies.score_column import ScoreColumn, WeightedColumn

Statistic = tuple[float, tuple[Array, ...]]
"""A number, and the amounts (n,) of the items over which it is a sum, of one set or of two; none
for ranks and signs, which are spread over all items."""


_NEARLY_ONE = 1 - 1e-12

MEASURED_ROW = "measured"
"""The name under which the influence itself is in the table: its concentration and reliability."""


def halves_of(
    halves: tuple[Tensor, ...], mask: Tensor, measured: ScoreColumn
) -> tuple[ScoreColumn, ScoreColumn]:
    """The influence measured on two halves of E.

    Args:
        halves: (n, t) each.
        mask: (n, t) bool.
        measured: What they sum to.

    Returns:
        A column each.

    Raises:
        ValueError: If they do not sum to it.
    """
    first, second = (ScoreColumn.of(f"half {k}", half, mask) for k, half in enumerate(halves))
    weights = np.ones(len(first.values))
    sums = first.values + second.values
    if not correlation(weights, sums, measured.values) > 1 - 1e-6:
        raise ValueError(
            "The halves do not sum to the measured influence: give the two halves of the very "
            "measurement that is audited."
        )
    return first, second


def top_counts(total: float, tops: Iterable[float]) -> dict[float, int]:
    """The number k of items that each share is, at least one.

    Args:
        total: Σ w.
        tops: Shares q.

    Returns:
        The counts by share.
    """
    return {q: max(1, round(q * total)) for q in tops}


def agreement(
    weights: Array, proxy: WeightedColumn, measured: WeightedColumn, counts: Mapping[float, int]
) -> dict[str, Statistic]:
    """All statistics of one proxy under one set of weights.

    Args:
        weights: (n,) how often each item counts.
        proxy: x.
        measured: y.
        counts: Sizes k of the tops, by share.

    Returns:
        Statistics by name; NaN where one is not defined.
    """
    x = proxy.column
    y = measured.column
    squares = (x.squares, y.squares)
    product = x.signs * y.signs
    nonzero = np.where(product != 0, weights, 0.0)
    agree = np.where(product > 0, weights, 0.0)
    signed = float(nonzero.sum()) or math.nan
    sized = float(nonzero @ y.sizes) or math.nan
    table: dict[str, Statistic] = {
        "pearson": (correlation(weights, x.values, y.values), squares),
        "spearman": (correlation(weights, proxy.mid_ranks, measured.mid_ranks), ()),
        "pearson_size": (correlation(weights, x.sizes, y.sizes), squares),
        "spearman_size": (correlation(weights, proxy.size_ranks, measured.size_ranks), ()),
        "sign_agreement": (float(agree.sum()) / signed, ()),
        "sign_agreement_weighted": (float(agree @ y.sizes) / sized, (y.sizes,)),
    }
    for j, (q, k) in enumerate(counts.items()):
        tops = {
            "overlap": (proxy.largest[j], measured.largest[j]),
            "overlap_negative": (proxy.lowest[j], measured.lowest[j]),
        }
        for name, sets in tops.items():
            table[f"{name}@{q:g}"] = float(weights @ np.minimum(*sets)) / k, sets
        chosen = proxy.lowest[j] if x.signed else proxy.largest[j]  # that would lower entropy
        table[f"negative_share@{q:g}"] = negative_share(weights, chosen, y), (chosen,)
    unsigned = ("pearson_size", "spearman_size", "overlap@", "negative_share@")
    return {
        name: (value if x.signed or name.startswith(unsigned) else math.nan, sets)
        for name, (value, sets) in table.items()
    }


def correlation(weights: Array, x: Array, y: Array) -> float:
    """Pearson correlation with weights.

    Args:
        weights: (n,).
        x: (n,).
        y: (n,).

    Returns:
        The correlation; NaN where one of the two does not vary.
    """
    total = weights.sum()
    dx = x - (weights @ x) / total
    dy = y - (weights @ y) / total
    wx = weights * dx
    xx = float(wx @ dx)
    yy = float((weights * dy) @ dy)
    if xx <= 1e-24 * float((weights * x) @ x) or yy <= 1e-24 * float((weights * y) @ y):
        return math.nan
    return float(np.clip((wx @ dy) / math.sqrt(xx * yy), -1.0, 1.0))


def negative_share(weights: Array, chosen: Array, measured: ScoreColumn) -> float:
    """Share of the summed negative influence that chosen items hold.

    Args:
        weights: (n,).
        chosen: (n,) share of each item that is chosen.
        measured: y.

    Returns:
        Between 0 and 1; NaN where no influence is negative.
    """
    negative = weights * np.where(measured.signs < 0, measured.values, 0.0)
    total = float(negative.sum())
    return float(negative @ chosen) / total if total < 0 else math.nan


def statistics(
    weights: Array,
    measured: ScoreColumn,
    proxies: Mapping[str, ScoreColumn],
    halves: tuple[ScoreColumn, ScoreColumn] | None,
    tops: Sequence[float],
) -> dict[tuple[str, str], Statistic]:
    """Every statistic of every proxy under one set of weights.

    Args:
        weights: (n,) how often each item counts.
        measured: The influence.
        proxies: The proxies by name.
        halves: The influence measured on two halves of E, or None.
        tops: Shares q.

    Returns:
        Statistics by proxy, or "measured", and name; NaN where one is not defined.
    """
    counts = top_counts(float(weights.sum()), tops)
    y = measured.weighted(weights, counts.values())
    table: dict[tuple[str, str], Statistic] = {}
    for q, lowest in zip(tops, y.lowest, strict=True):
        share = negative_share(weights, lowest, measured)
        table[MEASURED_ROW, f"negative_share@{q:g}"] = share, (lowest,)
    for proxy, column in proxies.items():
        row = agreement(weights, column.weighted(weights, counts.values()), y, counts)
        for name, (x, sets) in row.items():
            table[proxy, name] = x if column.varies else math.nan, sets
    if halves is None:
        return table
    first, second = (half.weighted(weights, ()) for half in halves)
    pairs = {
        "pearson": (first.column.values, second.column.values),
        "spearman": (first.mid_ranks, second.mid_ranks),
    }
    for kind, pair in pairs.items():
        r = correlation(weights, *pair)
        reliability = math.sqrt(2 * r / (1 + r)) if r > 0 else math.nan
        of_y = (measured.squares,) if kind == "pearson" else ()
        table[MEASURED_ROW, f"{kind}_of_halves"] = r, of_y
        table[MEASURED_ROW, f"{kind}_reliability"] = reliability, of_y
        for proxy in proxies:
            value, sets = table[proxy, kind]
            table[proxy, f"{kind}_corrected"] = value / reliability, sets
    return table


def even_scale(name: str) -> tuple[Callable[[Array], Array], Callable[[float], float]]:
    """The scale g on which the draws of a statistic spread evenly (`audit`), and its inverse."""
    if name.endswith("_corrected"):  # may be above 1
        return np.asarray, float
    if name.startswith(("pearson", "spearman")):
        return lambda r: np.arctanh(np.clip(r, -_NEARLY_ONE, _NEARLY_ONE)), np.tanh
    quarter = math.pi / 2
    return (
        lambda p: np.arcsin(np.sqrt(np.clip(p, 0.0, 1.0))),
        lambda a: math.sin(min(max(a, 0.0), quarter)) ** 2,
    )
