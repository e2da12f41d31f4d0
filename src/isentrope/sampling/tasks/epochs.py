"""Passes over a data set in random order, for as many rows as are asked for."""

from __future__ import annotations

import random


def shuffled_epochs(size: int, n: int, seed: int) -> list[int]:
    """Numbers of rows: every row once in random order, then again in another order, and so on.

    Args:
        size: Rows of the data set, at least one.
        n: How many are asked for.
        seed: Fixes the orders.

    Returns:
        n numbers below `size`.
    """
    rng, order = random.Random(seed), []
    while len(order) < n:
        order += rng.sample(range(size), size)
    return order[:n]
