"""Degrees of freedom of an error, from over how many equal units it is spread (T11).

Where an error comes from influences φ_p of independent units (prompts), its degrees of freedom are
their participation less one,

    (Σ_p φ_p²)² / Σ_p φ_p⁴ − 1,

the number of units of equal influence that would carry the number: a third of the units where the
influences are normal, a handful where few long responses carry it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit


def participation(amounts: ArrayLike) -> float:
    """Over how many equal units a sum is spread.

    Args:
        amounts: (n,) not negative; the squares of influences for that of a standard error.

    Returns:
        (Σ a)²/Σ a², between 1 and n; n where all are zero.
    """
    a = np.asarray(amounts, dtype=np.float64)
    a = a / (a.max(initial=0.0) or 1.0)  # squares of squares of small numbers underflow
    squares = float(a @ a)
    return float(a.sum()) ** 2 / squares if squares > 0 else float(len(a))


def held_by_few(total: str, carriers: float, units: str, n: int | None = None) -> str:
    """That few units hold most of a sum, as the beginning of a sentence.

    Args:
        total: The sum.
        carriers: Over how many equal units it is spread (`participation`).
        units: Their name, in the plural.
        n: All units; None to leave their number out.

    Returns:
        "One response holds most of …", or "Few of the 40 prompts hold most of …, as 3 of equal
        weight would".
    """
    count = round(carriers)
    if count < 2:
        subject = f"One {units.removesuffix('s')}" if n is None else f"One of the {n} {units}"
        return f"{subject} holds most of {total}"
    subject = f"A handful of {units}" if n is None else f"Few of the {n} {units}"
    return f"{subject} hold most of {total}, as {count} of equal weight would"


def freedom_of_units(influences: ArrayLike) -> float:
    """Degrees of freedom of an error over units, such as prompts, from their participation.

    Args:
        influences: (n,) of the units, less their mean.

    Returns:
        Between 1 and n − 1.
    """
    squares = np.square(np.asarray(influences, dtype=np.float64))
    return min(max(participation(squares) - 1, 1.0), len(squares) - 1.0)


def freedom_of_groups(influences: ArrayLike) -> float:
    """Degrees of freedom of an error over groups that each hold many units.

    Sums of many units are nearly normal, and even normal influences of few groups have a small
    participation p, about p₀ = G(G+1)/(3(G−1)). Only what p lacks of p₀ counts:
    1/df = 1/(G−1) + 1/(p−1) − 1/(p₀−1).

    Args:
        influences: (G,) of the groups, less their mean.

    Returns:
        Between 1 and G − 1.
    """
    squares = np.square(np.asarray(influences, dtype=np.float64))
    g = len(squares)
    if g < 3 or not squares.any():
        return g - 1.0
    lack = 1 / max(participation(squares) - 1, 1e-9) - 1 / (g * (g + 1) / (3 * (g - 1)) - 1)
    return max(1.0, 1 / (1 / (g - 1) + max(lack, 0.0)))


def confidence_of_each(confidence: float, intervals: int) -> float:
    """Coverage of each of several intervals that all hold at once (Bonferroni).

    A number that was chosen as the largest of several is as far out as any of them, so its interval
    has to hold wherever the choice falls.

    Args:
        confidence: With which all hold.
        intervals: How many there were to choose from.

    Returns:
        1 − (1 − confidence)/intervals.
    """
    return 1 - (1 - confidence) / max(intervals, 1)


def t_quantile(degrees_of_freedom: float, confidence: float = 0.95) -> float:
    """The factor from a standard error to half of an interval.

    Args:
        degrees_of_freedom: Of the standard error.
        confidence: Nominal coverage.

    Returns:
        The two-sided quantile of Student's t: 2.36 for 7 degrees of freedom, 1.96 for many.

    Raises:
        ValueError: If the coverage is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.95, got {confidence}.")
    return float(stdtrit(degrees_of_freedom, 0.5 + confidence / 2))
