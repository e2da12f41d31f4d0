"""Ranks and tails of a sample in which item i counts w_i times, from one sort.

    rank(x) = Σ_{x_j < x} w_j + ½ Σ_{x_j = x} w_j                           (mid-rank, less ½)
    x_j = x      to rounding (`attribution.ties`)
    bottom k: the k smallest of Σ_i w_i items; those tied with the last share the rest of k

A bootstrap draw of prompts is a set of whole-number weights, so a draw costs no sort.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isentrope.attribution.ties import last_of_ties

Array = NDArray[np.float64]


class WeightedRanks:
    """An array sorted once, ranked under any weights."""

    def __init__(self, values: Array) -> None:
        """Sort.

        Args:
            values: (n,) float64.
        """
        self.order = np.argsort(values, kind="stable")
        last = last_of_ties(values[self.order])
        self.ends = np.flatnonzero(last)
        self.group = np.empty(len(values), dtype=np.int64)
        self.group[self.order] = np.cumsum(last) - last

    def below(self, weights: Array) -> tuple[Array, Array]:
        """Weight below each group of equal values, and with it.

        Args:
            weights: (n,) how often each item counts.

        Returns:
            Two arrays, one entry per group in ascending order.
        """
        upto = np.cumsum(weights[self.order])[self.ends]
        return np.concatenate(([0.0], upto[:-1])), upto

    def ranks(self, below: Array, upto: Array) -> Array:
        """Mid-ranks of the items.

        Args:
            below: As `below` gives it.
            upto: The same.

        Returns:
            (n,) ranks.
        """
        return (0.5 * (below + upto))[self.group]

    def bottom(self, below: Array, upto: Array, k: float) -> Array:
        """Share of each item that is among the k smallest.

        Args:
            below: As `below` gives it.
            upto: The same.
            k: How many.

        Returns:
            (n,) between 0 and 1, a fraction only for items tied with the k-th.
        """
        size = upto - below
        share = np.clip((k - below) / np.where(size > 0, size, 1.0), 0.0, 1.0)
        return share[self.group]
