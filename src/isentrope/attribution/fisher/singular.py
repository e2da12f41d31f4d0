"""The singular values of a rectangular block of the Fisher kernel, such as E × U (T7).

    K = Σ_k σ_k a_k b_kᵀ,     effective rank = (Σ_k σ_k)² / Σ_k σ_k²

The column b_k says which responses of the update batch push together, the row a_k which responses
of E move for it. Of a batch with itself σ_k are the eigenvalues, and the effective rank is that of
`spectrum`. It depends on how many rows and columns there are, so it is compared with random
directions of the observed norms in d_eff dimensions, 1/d_eff the mean square cosine of responses to
different prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.fisher.deletions import deletions, over_deletions
from isentrope.attribution.fisher.null_spectra import DRAWS, Null, simulated_null
from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    above_rounding,
    fitted_dimension,
)
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Numbers

TOP = (1, 2, 5, 10, 20)
"""Numbers of leading values whose share is reported; those above min(n, m) are omitted."""


@dataclass(frozen=True)
class SingularValues:
    """Singular values of a block.

    Attributes:
        values: (min(n, m),) descending, in the unit of K; 0 where one is rounding.
        effective_rank: At these numbers of prompts and responses.
        shares: By k, the share of the k leading values in their sum.
        fitted_dimension: d_eff; None without diagonals.
        null: Random directions of the observed norms; None without diagonals.
    """

    values: Numbers
    effective_rank: Estimate
    shares: dict[int, Estimate]
    fitted_dimension: Estimate | None
    null: Null | None


@dataclass(frozen=True)
class SingularSpectrum(SingularValues):
    """Singular values of a block, and the columns behind the first.

    Attributes:
        leading: (m,) b_1, the unit vector of columns with the largest singular value.
    """

    leading: Tensor = field(repr=False)


def singular_spectrum(
    matrix: Tensor,
    row_prompt: Tensor,
    column_prompt: Tensor,
    diagonals: tuple[Tensor, Tensor] | None = None,
    *,
    seed: int = 0,
) -> SingularSpectrum:
    """Singular values, effective rank and the null.

    Args:
        matrix: (n, m) K of one batch with another, not zero.
        row_prompt: (n,) int64 prompt of each row.
        column_prompt: (m,) int64 prompt of each column, numbered as in `row_prompt`.
        diagonals: (n,) K_ii of the rows and (m,) K_jj of the columns, for the null.
        seed: Of the simulation.

    Returns:
        The spectrum.
    """
    values = torch.linalg.svdvals(matrix)
    _, vectors = torch.linalg.eigh(matrix.T @ matrix)
    top = [k for k in TOP if k <= len(values)]
    removed = deletions(row_prompt, column_prompt)
    left = [_of(torch.linalg.svdvals(matrix[d.rows][:, d.columns]), top) for d in removed]
    units = ["responses", *["share"] * len(top)]
    by_statistic = zip(_of(values, top), zip(*left, strict=True), units, strict=True)
    rank, *shares = (over_deletions(x, deleted, removed, u) for x, deleted, u in by_statistic)
    fitted, null = None, None
    if diagonals is not None:
        fitted = fitted_dimension(matrix, PromptPairs(row_prompt, column_prompt), diagonals)
        if math.isfinite(fitted.value):
            rng = np.random.default_rng(seed)
            null = simulated_null(diagonals, values, fitted.value, DRAWS, rng)
    by_k = dict(zip(top, shares, strict=True))
    values = above_rounding(values, max(matrix.shape))
    return SingularSpectrum(values, rank, by_k, fitted, null, vectors[:, -1])


def _of(values: Tensor, top: Sequence[int]) -> list[float]:
    """Effective rank, and the shares of the leading values."""
    total = float(values.sum())
    if not total > 0:
        return [math.nan] * (1 + len(top))
    return [total**2 / float(values.square().sum())] + [
        float(values[:k].sum()) / total for k in top
    ]
