"""How well a proxy agrees with a measured influence, item i counting w_i times (T9).

    pearson, spearman            correlation of proxy x and influence y, and of their ranks
    pearson_size, spearman_size  the same of |x| and |y|
    sign_agreement               share of the items with x, y ≠ 0 on which the signs are equal
    sign_agreement_weighted      the same, each item counting |y|
    overlap@q                    |top of |x| ∩ top of |y|| / k, the k largest sizes
    overlap_negative@q           the same for the k most negative
    negative_share@q             share of Σ min(y, 0) on the k items where x is most negative

with k = max(1, round(q Σ w)), at least one item.
Values are equal, or have no sign, where they differ from each other, or from 0, by rounding alone
(`attribution.ranks`). Items tied with the last one of a top are in it by equal shares, and where
both tops hold a share of an item the smaller one is common: so a proxy equal to y overlaps fully.
A proxy without sign has sizes and overlap@q, and its negative_share@q is on the k largest |x|.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from isentrope.attribution.ranks import Array, WeightedRanks, resolution, signs

Statistic = tuple[float, tuple[Array, ...]]
"""A number, and the amounts (n,) of the items over which it is a sum, of one set or of two; none
for ranks and signs, which are spread over all items."""


class ScoreColumn:
    """Values, their sizes and both orders.

    Attributes:
        values: (n,) float64.
        sizes: (n,) |values|.
        signs: (n,) −1, 0 or 1.
        squares: (n,) squares around the mean.
        signed: Whether the sign has a meaning.
    """

    def __init__(self, values: Array, signed: bool = True) -> None:
        """Sort values and sizes.

        Args:
            values: (n,) float64.
            signed: Whether the sign has a meaning.
        """
        self.values, self.signed = values, signed
        self.sizes, self.signs = np.abs(values), signs(values)
        self.squares = np.square(values - values.mean())
        self._ascending, self._by_size = WeightedRanks(values), WeightedRanks(-self.sizes)

    @property
    def varies(self) -> bool:
        """Whether the values differ by more than rounding."""
        return bool((np.ptp(self.values) > resolution(self.values)).any())

    def weighted(self, weights: Array, counts: Iterable[int]) -> WeightedColumn:
        """The column under weights.

        Args:
            weights: (n,) how often each item counts.
            counts: Sizes k of the tops.

        Returns:
            Ranks and tops.
        """
        ascending, by_size, counts = self._ascending, self._by_size, list(counts)
        values, sizes = ascending.below(weights), by_size.below(weights)
        return WeightedColumn(
            self,
            ascending.ranks(*values),
            by_size.ranks(*sizes),
            [ascending.bottom(*values, k) for k in counts],
            [by_size.bottom(*sizes, k) for k in counts],
        )


@dataclass(frozen=True)
class WeightedColumn:
    """Ranks and tops of a column under weights.

    Attributes:
        column: The column.
        ranks: (n,) mid-ranks of the values.
        size_ranks: (n,) mid-ranks of −|values|.
        lowest: Share of each item in the k most negative, (n,) for each k.
        largest: Share of each item in the k largest by size, (n,) for each k.
    """

    column: ScoreColumn
    ranks: Array
    size_ranks: Array
    lowest: list[Array]
    largest: list[Array]

    @property
    def chosen(self) -> list[Array]:
        """The tokens that such a proxy predicts to lower the entropy, for each k."""
        return self.lowest if self.column.signed else self.largest


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
    x, y = proxy.column, measured.column
    squares, of_signs = (x.squares, y.squares), _sign_agreement(weights, x, y)
    found: dict[str, Statistic] = {
        "pearson": (correlation(weights, x.values, y.values), squares),
        "spearman": (correlation(weights, proxy.ranks, measured.ranks), ()),
        "pearson_size": (correlation(weights, x.sizes, y.sizes), squares),
        "spearman_size": (correlation(weights, proxy.size_ranks, measured.size_ranks), ()),
        "sign_agreement": (of_signs[0], ()),
        "sign_agreement_weighted": (of_signs[1], (y.sizes,)),
    }
    for j, (q, k) in enumerate(counts.items()):
        tops = {
            "overlap": (proxy.largest[j], measured.largest[j]),
            "overlap_negative": (proxy.lowest[j], measured.lowest[j]),
        }
        for name, sets in tops.items():
            found[f"{name}@{q:g}"] = float(weights @ np.minimum(*sets)) / k, sets
        chosen = proxy.chosen[j]
        found[f"negative_share@{q:g}"] = negative_share(weights, chosen, y), (chosen,)
    unsigned = ("pearson_size", "spearman_size", "overlap@", "negative_share@")
    return {
        name: (value if x.signed or name.startswith(unsigned) else math.nan, sets)
        for name, (value, sets) in found.items()
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
    dx, dy = x - (weights @ x) / total, y - (weights @ y) / total
    wx = weights * dx
    xx, yy = float(wx @ dx), float((weights * dy) @ dy)
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


def _sign_agreement(weights: Array, x: ScoreColumn, y: ScoreColumn) -> tuple[float, float]:
    product = x.signs * y.signs
    both, agree = weights * (product != 0), weights * (product > 0)
    total, sized = float(both.sum()), float(both @ y.sizes)
    if total == 0:
        return math.nan, math.nan
    return float(agree.sum()) / total, float(agree @ y.sizes) / sized
