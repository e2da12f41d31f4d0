"""Values that differ by rounding alone are tied: what ranks them does not depend on the last bit.

Two equal responses have equal influences, and two sums of the same numbers in another order differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TIED = 1e-10
"""Largest gap between neighbours that are tied, as a share of the largest value's size."""


def last_of_ties(ascending: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where groups of tied values end.

    Args:
        ascending: (..., n) sorted along the last axis.

    Returns:
        (..., n) bool.
    """
    size = np.abs(ascending).max(-1, keepdims=True, initial=0.0)
    apart = np.diff(ascending, axis=-1) > TIED * size
    return np.concatenate((apart, np.ones((*apart.shape[:-1], 1), dtype=bool)), -1)


def tied(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of the group of tied values that each value is in, in ascending order.

    Args:
        values: (..., n).

    Returns:
        (..., n) whole numbers, which rank as the values do.
    """
    order = np.argsort(values, -1, kind="stable")
    last = last_of_ties(np.take_along_axis(values, order, -1))
    groups = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(groups, order, np.cumsum(last, -1) - last, -1)
    return groups
