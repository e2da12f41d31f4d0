"""Pairs of sequences by prompt, and the jackknife over prompts that every number of a kernel has.

    θ̂_(p) = (Σ − Σ_touching p) / (# − #_touching p),     SE² = (P − 1)/P · Σ_p (θ̂_(p) − θ̄)²

Deleting a prompt removes its rows and its columns together, which needs row and column sums only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.jackknife import Units
from isentrope.nouns.estimate import Estimate

KERNEL_UNIT = "nats per unit of η·w·A"
"""The unit of K: a step on t' changes log π(t) by η K(t, t') w A(t')."""

_NO_ERROR = "It uses so few prompts that without one of them no pair remains: no error is given."


class PromptPairs:
    """Rows and columns of a kernel by prompt: sums over pairs, whole and without each prompt.

    Vectors of length 1 + P hold a statistic of all pairs, then of all pairs without prompt p.
    """

    def __init__(self, row_prompt: Tensor, column_prompt: Tensor) -> None:
        """Number the prompts.

        Args:
            row_prompt: (n,) int64 prompt of each row.
            column_prompt: (m,) int64 prompt of each column.
        """
        units = Units.of(torch.cat([row_prompt, column_prompt]))
        self.n_prompts = units.count
        n = len(row_prompt)
        self.rows = units.place[:n]
        self.columns = units.place[n:]
        self.same = self.rows[:, None] == self.columns[None]  # (n, m)

    def _touching(self, values: Tensor) -> Tensor:
        """(P,) the sum of (n, m) values over rows or columns of each prompt, each entry once."""
        within_prompt = (values * self.same).sum(1)
        of_rows = Units(self.rows, self.n_prompts).sums(values.sum(1) - within_prompt)
        return of_rows.index_add_(0, self.columns, values.sum(0))

    def sums(self, values: Tensor) -> Tensor:
        """Sums of (n, m) values.

        Args:
            values: (n, m), zero where a pair does not count.

        Returns:
            (1 + P,) float64.
        """
        values = values.to(torch.float64)
        total = values.sum()
        return torch.cat([total[None], total - self._touching(values)])

    def means(self, values: Tensor, mask: Tensor) -> Tensor:
        """Means of (n, m) values over the pairs of a mask.

        Args:
            values: (n, m).
            mask: (n, m) bool.

        Returns:
            (1 + P,) float64; NaN where no pair remains.
        """
        counts = self.sums(mask).round()
        return self.sums(values.where(mask, 0.0)) / torch.where(counts > 0, counts, torch.nan)

    def estimate(self, statistic: Tensor, mask: Tensor, unit: str) -> Estimate:
        """A statistic of the pairs of a mask, with its jackknife error.

        Degrees of freedom come from the side, rows or columns, on which fewer prompts take part.

        Args:
            statistic: (1 + P,), whole and without each prompt.
            mask: (n, m) bool, the pairs it uses; other prompts do not enter the error.
            unit: Its unit.

        Returns:
            The estimate.
        """
        taking_part = self._touching(mask.to(torch.float64)) > 0.5
        sides = [self.rows[mask.any(1)], self.columns[mask.any(0)]]
        n = min(Units.of(side).count for side in sides)
        return delete_one(statistic[0], statistic[1:][taking_part], n, unit)


def delete_one(value: Tensor, deleted: Tensor, n: int, unit: str) -> Estimate:
    """The delete-one jackknife.

    Args:
        value: The statistic, a scalar.
        deleted: (P,) the statistic without each unit in turn.
        n: Number of units for the degrees of freedom.
        unit: Unit of the statistic.

    Returns:
        The estimate; no interval, and a warning, where a deletion leaves no pair.
    """
    has_error = n > 1 and bool(deleted.isfinite().all())
    influences = (1 - 1 / len(deleted)) * (deleted.mean() - deleted)
    return Estimate.from_influences(
        float(value),
        influences if has_error else influences * math.nan,
        at_most=n,
        unit=unit,
        method="jackknife over prompts",
        warnings=() if has_error else (_NO_ERROR,),
    )


def estimate_columns(estimate: Estimate) -> dict[str, Any]:
    """The columns value, se, ci_low, ci_high and prompts of a table."""
    return estimate.columns() | {"prompts": estimate.n}


def estimate_table(rows: Iterable[tuple[dict[str, Any], Estimate | None]]) -> pd.DataFrame:
    """A table of estimates, each after the columns that name it; None is omitted."""
    return pd.DataFrame([head | estimate_columns(e) for head, e in rows if e is not None])


def shared_identities(
    rows: Sequence[str] | Sequence[Tensor], columns: Sequence[str] | Sequence[Tensor]
) -> PromptPairs:
    """The pairs of two batches, whose prompts are numbered consistently.

    Args:
        rows: Prompt keys, or token ids, of each row.
        columns: The same of each column.

    Returns:
        The pairs, of one prompt where keys or tokens are equal.
    """
    keys = [x if isinstance(x, str) else str(x.tolist()) for x in (*rows, *columns)]
    numbers = torch.from_numpy(pd.factorize(pd.Series(keys))[0])
    return PromptPairs(numbers[: len(rows)], numbers[len(rows) :])


def cosines(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """K_ij / √(K_ii K_jj).

    Args:
        matrix: (n, m) block of a kernel.
        rows: (n,) K_ii of its rows.
        columns: (m,) K_jj of its columns.

    Returns:
        (n, m), NaN in the rows and columns of sequences with K_ii = 0, which have no cosine.
    """
    inverse = [x.where(x > 0, torch.nan).rsqrt() for x in (rows, columns)]
    return matrix * inverse[0][:, None] * inverse[1]


def fitted_dimension(
    matrix: Tensor, pairs: PromptPairs, diagonals: tuple[Tensor, Tensor]
) -> Estimate:
    """d_eff: one over the mean square cosine of sequences of different prompts.

    Args:
        matrix: (n, m) block of a kernel.
        pairs: Its rows and columns by prompt.
        diagonals: (n,) K_ii of its rows and (m,) K_jj of its columns.

    Returns:
        The dimension in which random directions would overlap as much.
    """
    squares = cosines(matrix, *diagonals).square()
    mask = ~pairs.same & squares.isfinite()
    squares = pairs.means(squares, mask)
    return pairs.estimate(1 / squares, mask, "dimensions")


def at_most(largest: int, rank: Estimate) -> Estimate:
    """An effective rank whose interval ends where a rank can be.

    Args:
        largest: The smaller side of the matrix.
        rank: Of the matrix.

    Returns:
        The same value and error.
    """
    return replace(rank, ci_high=min(rank.ci_high, float(largest)))


def require_finite_kernel(matrix: Tensor) -> None:
    """Refuse NaN and infinity.

    Args:
        matrix: Any block of a kernel.

    Raises:
        ValueError: Saying how many entries are not finite.
    """
    if not bool(matrix.isfinite().all()):
        raise ValueError(f"{int((~matrix.isfinite()).sum())} entries of the kernel are not finite.")


def above_rounding(values: Tensor, size: int | None = None) -> Tensor:
    """Eigenvalues of a kernel, or singular values, with 0 for those that are rounding alone.

    A Gram matrix has no negative eigenvalues, so those that are negative show the size of rounding:
    what is below twice the largest of them is rounding too. So is what is below n ε λ_max, the
    accuracy of a decomposition in float64.

    Args:
        values: (m,) descending.
        size: n, the larger side of the matrix; None: m.

    Returns:
        (m,) the values, none of them negative.
    """
    n = len(values) if size is None else size
    floor = max(n * torch.finfo(torch.float64).eps * float(values[0]), -2 * float(values[-1]))
    return torch.where(values > floor, values, 0.0)
