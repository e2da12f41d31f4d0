"""Which problems a task asks, and in which order.

Train and test of generated tasks are separated by a digest of the problem, so they never meet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from isentrope.system.files import short_digest

TEST_SHARE = 0.2

Item = TypeVar("Item")


def require_split(split: str, task: str) -> None:
    """Refuse a split that generated tasks do not have.

    Args:
        split: "train" or "test".
        task: Name of the task, for the message.

    Raises:
        ValueError: If it is neither.
    """
    if split not in ("train", "test"):
        raise ValueError(f"{task} has the splits train and test, not {split!r}.")


def in_test(problem: str) -> bool:
    """Whether a problem is of the test split: a digest of its text decides.

    Args:
        problem: The problem as text, the same in every kind of prompt that asks it.

    Returns:
        True for one fifth of all problems.
    """
    return int.from_bytes(short_digest(problem, 4)) < TEST_SHARE * 2**32


def limited(items: Sequence[Item], limit: int | None, seed: int) -> list[Item]:
    """All items, or `limit` of them in seeded order.

    Args:
        items: The split.
        limit: How many; None for all.
        seed: Order in which they are taken.

    Returns:
        The items.

    Raises:
        ValueError: If there are not so many.
    """
    if limit is None:
        return list(items)
    if not 0 < limit <= len(items):
        raise ValueError(f"limit must be 1 to {len(items)}, the size of the split: {limit}.")
    return random.Random(seed).sample(items, limit)


def require_probability(name: str, value: float) -> None:
    """Refuse a number that is not a probability below 1.

    Args:
        name: Name of the option.
        value: Its value.

    Raises:
        ValueError: If it lies outside [0, 1).
    """
    if not 0 <= value < 1:
        raise ValueError(f"{name} is a probability below 1, got {value}.")


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
