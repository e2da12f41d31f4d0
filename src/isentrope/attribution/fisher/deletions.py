"""A jackknife over the prompts of both sides of a rectangular block, by groups (T7).

    SE² = Σ_kinds (G_k − 1)/G_k Σ_{g of kind k} (θ̂_(g) − θ̄_k)²

A prompt of the rows alone, of the columns alone, or of both is of another kind: without a prompt of
the rows, or of the columns, a block has another shape, and a statistic that depends on it has
another mean. At most `most` groups of prompts are deleted per kind, for statistics that take a
singular value decomposition each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isentrope.nouns.estimate import Estimate, freedom_of_groups

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
