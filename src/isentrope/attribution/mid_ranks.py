"""Ranks of values: ties up to rounding, and items that count in part.

Values that differ by rounding alone are tied: what ranks them does not depend on the last bit.

Two equal responses have equal influences, and two sums of the same numbers in another order differ.

One sort gives ranks and tails of a sample in which item i counts w_i times:

    rank(x) = Σ_{x_j < x} w_j + ½ Σ_{x_j = x} w_j                           (mid-rank, less ½)
    x_j = x      to rounding
    bottom k: the k smallest of Σ_i w_i items; those tied with the last share the rest of k

A bootstrap draw of prompts is a set of whole-number weights, so a draw costs no sort.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

TIED = 1e-10
"""Largest gap between neighbours that are tied, as a share of the largest value's size."""


def resolution(values: Array) -> Array:
    """The largest difference that is rounding.

    Args:
        values: (..., n).

    Returns:
        (..., 1).
    """
    return TIED * np.abs(values).max(-1, keepdims=True, initial=0.0)


def signs(values: Array) -> Array:
    """The signs of values, 0 where a value is tied with zero.

    Args:
        values: (..., n).

    Returns:
        (..., n) of −1, 0 and 1.
    """
    return np.where(np.abs(values) > resolution(values), np.sign(values), 0.0)


def tied(values: Array) -> NDArray[np.int64]:
    """The number of the group of tied values that each value is in, in ascending order.

    Args:
        values: (..., n).

    Returns:
        (..., n) whole numbers, which rank as the values do.
    """
    order = np.argsort(values, -1, kind="stable")
    ascending = np.take_along_axis(values, order, -1)
    apart = np.diff(ascending, axis=-1, prepend=ascending[..., :1]) > resolution(ascending)
    groups = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(groups, order, np.cumsum(apart, -1), -1)
    return groups


def lowest(values: Tensor, share: float) -> Tensor:
    """The share of the values that is lowest; those tied with the last one are in.

    Args:
        values: (m,) at least one.
        share: Between 0 and 1.

    Returns:
        (m,) bool, at least one true.
    """
    numbers = values.double()
    last = numbers.sort().values[max(1, round(share * len(numbers))) - 1]
    return numbers <= last + TIED * numbers.abs().max()


class WeightedRanks:
    """An array sorted once, ranked under any weights."""

    def __init__(self, values: Array) -> None:
        """Sort.

        Args:
            values: (n,) float64.
        """
        self.order = np.argsort(values, kind="stable")
        self.group = tied(values)
        self.ends = np.flatnonzero(np.diff(self.group[self.order], append=-1))

    def under(self, weights: Array, counts: Iterable[float] = ()) -> tuple[Array, list[Array]]:
        """Mid-ranks, and the smallest items.

        Args:
            weights: (n,) how often each item counts.
            counts: Numbers k of the smallest.

        Returns:
            (n,) ranks; and for each k the share of each item that is among the k smallest, (n,)
            between 0 and 1, a fraction only for items tied with the k-th.
        """
        upto = np.cumsum(weights[self.order])[self.ends]  # weight of each group and those below
        below = np.concatenate(([0.0], upto[:-1]))
        sizes = np.where(upto > below, upto - below, 1.0)
        bottoms = [np.clip((k - below) / sizes, 0.0, 1.0)[self.group] for k in counts]
        return (0.5 * (below + upto))[self.group], bottoms
