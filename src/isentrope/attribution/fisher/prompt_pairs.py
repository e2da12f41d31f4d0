"""Pairs of sequences by prompt, and the jackknife over prompts that every number of a kernel has.

    θ̂_(p) = (Σ − Σ_touching p) / (# − #_touching p),     SE² = (P − 1)/P · Σ_p (θ̂_(p) − θ̄)²

Deleting a prompt removes its rows and its columns together, which needs row and column sums only.

Of a rectangular block the prompts of both sides are deleted, by groups (T7):

    SE² = Σ_kinds (G_k − 1)/G_k Σ_{g of kind k} (θ̂_(g) − θ̄_k)²

A prompt of the rows alone, of the columns alone, or of both is of another kind: without a prompt of
the rows, or of the columns, a block has another shape, and a statistic that depends on it has
another mean. At most `most` groups of prompts are deleted per kind, for statistics that take a
singular value decomposition each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from isentrope.estimators.functional import Units
from isentrope.nouns.estimate import Caveats, Estimate, freedom_of_groups

Kind = Literal["rows", "columns", "both"]


@dataclass(frozen=True)
class Deletion:
    """What is left of a block without some prompts.

    Attributes:
        rows: (n,) bool, the rows that are left.
        columns: (m,) bool, the columns that are left.
        kind: Where those prompts were.
    """

    rows: Tensor
    columns: Tensor
    kind: Kind


def deletions(row_prompt: Tensor, column_prompt: Tensor, most: int = 32) -> list[Deletion]:
    """The blocks without each group of prompts in turn.

    Args:
        row_prompt: (n,) int64 prompt of each row.
        column_prompt: (m,) int64 prompt of each column, numbered as in `row_prompt`.
        most: Largest number of groups of a kind.

    Returns:
        One per group.
    """
    in_rows, in_columns = set(row_prompt.tolist()), set(column_prompt.tolist())
    kinds: dict[Kind, list[int]] = {
        "rows": sorted(in_rows - in_columns),
        "columns": sorted(in_columns - in_rows),
        "both": sorted(in_rows & in_columns),
    }
    return [
        Deletion(~torch.isin(row_prompt, group), ~torch.isin(column_prompt, group), kind)
        for kind, units in kinds.items()
        if units
        for group in torch.tensor(units).tensor_split(min(most, len(units)))
    ]


def over_deletions(
    value: float, deleted: Iterable[float], removed: Sequence[Deletion], unit: str
) -> Estimate:
    """A statistic with the error that its deletions give.

    Args:
        value: Of the whole block.
        deleted: Without each group.
        removed: Those groups, as `deletions` made them.
        unit: Of the statistic.

    Returns:
        The estimate; no interval where a side has one prompt only. Degrees of freedom are those
        of the kind with the largest part of the error, fewer where another kind has fewer groups.
    """
    values = torch.tensor(list(deleted), dtype=torch.float64)
    parts, counts = [], []
    for kind in dict.fromkeys(d.kind for d in removed):
        here = values[torch.tensor([d.kind == kind for d in removed])]
        counts.append(len(here))
        around_mean = here - here.mean()
        variance = (1 - 1 / len(here)) * float(around_mean.square().sum())
        parts.append((variance, freedom_of_groups(around_mean)))
    n, variance = min(counts), sum(v for v, _ in parts)
    return Estimate.from_standard_error(
        value,
        variance**0.5 if n > 1 else float("nan"),
        n,
        unit=unit,
        method="jackknife over groups of prompts",
        degrees_of_freedom=min(n - 1.0, max(parts)[1]),
    )


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
        self.n_prompts, n = units.count, len(row_prompt)
        self.rows, self.columns = units.place[:n], units.place[n:]
        self.same = self.rows[:, None] == self.columns[None]  # (n, m)

    def _touching(self, values: Tensor) -> Tensor:
        """(P,) the sum of (n, m) values over rows or columns of each prompt, each entry once."""
        own = (values * self.same).sum(1)
        of_rows = Units(self.rows, self.n_prompts).sums(values.sum(1) - own)
        return of_rows.index_add_(0, self.columns, values.sum(0))

    def sums(self, values: Tensor) -> Tensor:
        """Sums of (n, m) values.

        Args:
            values: (n, m), zero where a pair does not count.

        Returns:
            (1 + P,) float64.
        """
        values = values.to(torch.float64)
        whole = values.sum()
        return torch.cat([whole[None], whole - self._touching(values)])

    def means(self, values: Tensor, mask: Tensor) -> Tensor:
        """Means of (n, m) values over the pairs of a mask.

        Args:
            values: (n, m).
            mask: (n, m) bool.

        Returns:
            (1 + P,) float64; NaN where no pair remains.
        """
        counts = self.sums(mask).round()
        return self.sums(values * mask) / torch.where(counts > 0, counts, torch.nan)

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
    options: dict[str, Any] = {"unit": unit, "method": "jackknife over prompts"}
    if not (n > 1 and bool(deleted.isfinite().all())):
        nan = float("nan")
        return Estimate.from_standard_error(
            float(value), nan, n, caveats=Caveats((_NO_ERROR,)), **options
        )
    influences = (1 - 1 / len(deleted)) * (deleted.mean() - deleted)
    return Estimate.from_influences(float(value), influences, at_most=n, **options)


def estimate_columns(estimate: Estimate) -> dict[str, Any]:
    """The columns value, se, ci_low, ci_high and prompts of a table."""
    return estimate.columns() | {"prompts": estimate.n}


def estimate_table(rows: Iterable[tuple[dict[str, Any], Estimate | None]]) -> pd.DataFrame:
    """A table of estimates, each after the columns that name it; None is omitted."""
    return pd.DataFrame([head | estimate_columns(e) for head, e in rows if e is not None])


def shared_identities(
    rows: Sequence[str] | Sequence[Tensor], columns: Sequence[str] | Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Number the prompts of two batches consistently.

    Args:
        rows: Prompt keys, or token ids, of each row.
        columns: The same of each column.

    Returns:
        ((n,), (m,)) int64, equal where the prompts are.
    """
    numbers: dict[Any, int] = {}
    keys = [x if isinstance(x, str) else tuple(x.tolist()) for x in (*rows, *columns)]
    indices = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
    return indices[: len(rows)], indices[len(rows) :]


def cosines(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """K_ij / √(K_ii K_jj).

    Args:
        matrix: (n, m) block of a kernel.
        rows: (n,) K_ii of its rows.
        columns: (m,) K_jj of its columns.

    Returns:
        (n, m), zero in the rows and columns of sequences with K_ii = 0.
    """
    inverse = [torch.where(x > 0, x, torch.inf).rsqrt() for x in (rows, columns)]
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
    rows, columns = diagonals
    mask = ~pairs.same & (rows > 0)[:, None] & (columns > 0)
    squares = pairs.means(cosines(matrix, rows, columns).square(), mask)
    return pairs.estimate(1 / squares, mask, "dimensions")


def require_finite(matrix: Tensor) -> None:
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
