"""A rectangular block of the kernel, such as E × U: singular values, and what truncations predict.

    K = Σ_k σ_k a_k b_kᵀ,     effective rank = (Σ_k σ_k)² / Σ_k σ_k²                        (T7)

Of a batch with itself σ_k are the eigenvalues, and the effective rank is that of `spectrum`. It
depends on how many rows and columns there are, so it is compared with random directions of the
observed norms in d_eff dimensions, 1/d_eff the mean square cosine of responses to different
prompts.

    δH_j = x_j Σ_i e_i K_ij,     e_i = −(S_i − S̄)/n_E,     K replaced by

    same_prompt     entries within a prompt, where rows and columns share prompts
    rank r          the r leading singular triplets, K V_r V_rᵀ
    full            K

The prediction of each response of U by a truncation is compared with that of the full block. S̄ is
the mean over the rows that are left.

Errors delete the prompts of both sides, by groups:

    SE² = Σ_kinds (G_k − 1)/G_k Σ_{g of kind k} (θ̂_(g) − θ̄_k)²

A prompt of the rows alone, of the columns alone, or of both is of another kind: without a prompt of
the rows, or of the columns, a block has another shape, and a statistic that depends on it has
another mean. At most `most` groups of prompts are deleted per kind, for statistics that take a
singular value decomposition each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.fisher.pair_classes import CHANGE_UNIT
from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    above_rounding,
    at_most,
    fitted_dimension,
)
from isentrope.attribution.fisher.spectrum import LEADING_SHARES, NULL_DRAWS, Null, simulated_null
from isentrope.attribution.fisher.square import oversample
from isentrope.attribution.fisher.truncation import LEADING_COUNTS, Prediction, predictions
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import freedom_of_groups
from isentrope.nouns.saved import Numbers

DeletedSide = Literal["rows", "columns", "both"]


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
    kind: DeletedSide


def deletions(pairs: PromptPairs, max_deletions: int = 32) -> list[Deletion]:
    """The blocks without each group of prompts in turn.

    Args:
        pairs: Rows and columns by prompt.
        max_deletions: Largest number of groups of a kind.

    Returns:
        One per group.
    """
    in_rows = set(pairs.rows.tolist())
    in_columns = set(pairs.columns.tolist())
    kinds: dict[DeletedSide, set[int]] = {
        "rows": in_rows - in_columns,
        "columns": in_columns - in_rows,
        "both": in_rows & in_columns,
    }
    return [
        Deletion(~torch.isin(pairs.rows, group), ~torch.isin(pairs.columns, group), kind)
        for kind, units in kinds.items()
        if units
        for group in torch.tensor(sorted(units)).tensor_split(min(max_deletions, len(units)))
    ]


def over_deletions(statistic: Tensor, removed: Sequence[Deletion], unit: str) -> Estimate:
    """A statistic with the error that its deletions give.

    Args:
        statistic: (1 + P,) of the whole block, then without each group.
        removed: Those groups, as `deletions` made them.
        unit: Of the statistic.

    Returns:
        The estimate; no interval where a side has one prompt only. Degrees of freedom are those
        of the kind with the largest part of the error, fewer where another kind has fewer groups.
    """
    parts = []
    counts = []
    for kind in dict.fromkeys(d.kind for d in removed):
        of_kind = statistic[1:][torch.tensor([d.kind == kind for d in removed])]
        counts.append(len(of_kind))
        around_mean = of_kind - of_kind.mean()
        variance = (1 - 1 / len(of_kind)) * float(around_mean.square().sum())
        parts.append((variance, freedom_of_groups(around_mean)))
    n = min(counts)
    variance = sum(v for v, _ in parts)
    return Estimate.from_standard_error(
        float(statistic[0]),
        variance**0.5 if n > 1 else float("nan"),
        n,
        unit=unit,
        method="jackknife over groups of prompts",
        degrees_of_freedom=min(n - 1.0, max(parts)[1]),
    )


@dataclass(frozen=True)
class SingularValues:
    """Singular values of a block.

    Attributes:
        values: (min(n, m),) descending, in the unit of K; 0 where one is rounding.
        effective_rank: At these numbers of prompts and responses.
        shares: By k, the share of the k leading values in their sum.
        fitted_dimension: d_eff; None in files of blocks without diagonals.
        null: Random directions of the observed norms; None where d_eff is not known.
    """

    values: Numbers
    effective_rank: Estimate
    shares: dict[int, Estimate]
    fitted_dimension: Estimate | None
    null: Null | None


def singular_spectrum(
    matrix: Tensor, pairs: PromptPairs, diagonals: tuple[Tensor, Tensor], *, seed: int = 0
) -> SingularValues:
    """Singular values, effective rank and the null.

    Args:
        matrix: (n, m) K of one batch with another, not zero.
        pairs: Rows and columns by prompt.
        diagonals: (n,) K_ii of the rows and (m,) K_jj of the columns, for the null.
        seed: Of the simulation.

    Returns:
        The spectrum.
    """
    removed = deletions(pairs)
    values = torch.linalg.svdvals(matrix)
    top = [k for k in LEADING_SHARES if k <= len(values)]
    blocks = (matrix[d.rows][:, d.columns] for d in removed)
    statistics = [_of(x, top) for x in (values, *map(torch.linalg.svdvals, blocks))]
    rank, *shares = torch.tensor(statistics, dtype=torch.float64).T  # (1 + P,) each
    fitted = fitted_dimension(matrix, pairs, diagonals)
    null = None
    if math.isfinite(fitted.value):
        rng = np.random.default_rng(seed)
        null = simulated_null(diagonals, values, fitted.value, NULL_DRAWS, rng)
    return SingularValues(
        above_rounding(values, max(matrix.shape)),
        at_most(min(matrix.shape), over_deletions(rank, removed, "responses")),
        {k: over_deletions(x, removed, "share") for k, x in zip(top, shares, strict=True)},
        fitted,
        null,
    )


def _of(values: Tensor, top: Sequence[int]) -> list[float]:
    """Effective rank, and the shares of the leading values; NaN of no values but zeros."""
    total = values.sum()
    shares = [values[:k].sum() / total for k in top]
    return [float(x) for x in (total.square() / values.square().sum(), *shares)]


def block_truncations(
    matrix: Tensor,
    logprobs: Tensor,
    x: Tensor,
    pairs: PromptPairs,
    leading_counts: Sequence[int] = LEADING_COUNTS,
) -> dict[str, Prediction]:
    """Compare each truncation of a block with the full double sum.

    Args:
        matrix: (n, m) K of E with U.
        logprobs: (n,) S of the rows, nats.
        x: (m,) w_j A_j, the weight of each response in the step.
        pairs: Rows and columns by prompt.
        leading_counts: Numbers of leading triplets.

    Returns:
        "same_prompt", where a prompt is shared, "rank 1", ..., and "full" at last.
    """
    leading_counts = [count for count in leading_counts if count <= min(matrix.shape)]
    shared = ["same_prompt"] if bool(pairs.same.any()) else []
    _, vectors = torch.linalg.eigh(matrix.T @ matrix)
    start = vectors.flip(1)[:, : oversample(max(leading_counts, default=0))]
    removed = deletions(pairs)

    def influences(rows: Tensor, columns: Tensor, vectors: Tensor) -> Tensor:
        """(rows, m) δH_j of every truncation of what is left, by its right singular vectors."""
        S = logprobs[rows]
        block = matrix[rows][:, columns]
        e = -(S - S.mean()) / len(S)
        full = e @ block
        along = (full @ vectors)[:, None] * vectors.T  # (r, m)
        within = [e @ (block * pairs.same[rows][:, columns])] if shared else []
        return (
            torch.stack([*within, *(along[:r].sum(0) for r in leading_counts), full]) * x[columns]
        )

    def without(d: Deletion) -> Tensor:
        block = matrix[d.rows][:, d.columns]
        # leading right singular vectors, close to those that are known
        basis, _ = torch.linalg.qr(block.T @ (block @ start[d.columns]))
        rotation = torch.linalg.svd(block @ basis, full_matrices=False)[2]
        return influences(d.rows, d.columns, basis @ rotation.T)

    def errors(statistic: Tensor, unit: str) -> Estimate:
        return over_deletions(statistic, removed, unit)

    names = [*shared, *(f"rank {r}" for r in leading_counts), "full"]
    rows, columns = (torch.ones(n, dtype=torch.bool) for n in matrix.shape)
    of_block = influences(rows, columns, start)
    return predictions(names, [of_block, *map(without, removed)], errors, CHANGE_UNIT)
