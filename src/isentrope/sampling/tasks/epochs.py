"""Passes over a data set in random order, for any number of rows."""

from __future__ import annotations

import random


def shuffled_epochs(size: int, n: int, seed: int) -> list[int]:
    """Row indices: every row once in random order, then again in another order, and so on.

    Args:
        size: Rows of the data set, at least one.
        n: Number of indices.
        seed: Fixes the orders.

    Returns:
        n numbers below `size`.
    """
    rng = random.Random(seed)
    order: list[int] = []
    while len(order) < n:
        order += rng.sample(range(size), size)
    return order[:n]
