"""Spectra of random score vectors, and the singular values that are compared with them (T7).

Three null models, each of the shape and trace of a kernel K = W P Wᵀ, and the question that each
answers:

"all parameters": rows of independent normal numbers in all d trainable parameters (Wishart). *Are
    the score vectors as close to orthogonal as d allows?* Those of a model never are for d in the
    millions.
"fitted dimension": the same in d_eff dimensions, where 1/d_eff is the mean square cosine of
    sequences of different prompts. *Given the average overlap of unrelated sequences, is it spread
    evenly, or concentrated in a few common directions?* A common direction raises the
    mean square cosine too, so this null is conservative.
"observed norms": rows of the observed norms √K_ii with random directions in d_eff dimensions,
    simulated. *The same question, when some sequences are longer than others:* long rows alone
    lift the largest eigenvalues over the Wishart edge.

For n rows in d dimensions with mean K_ii = m the Marchenko–Pastur law (n, d → ∞ at fixed n/d) gives

    λ± = m (1 ± √(n/d))²,   density d √((λ₊ − λ)(λ − λ₋)) / (2π n m λ),   mass 1 − d/n at 0 if d < n

These two are curves to be drawn beside the eigenvalues, and nothing is counted against their edges:
a finite Wishart matrix exceeds λ₊ in about one draw of six (Tracy–Widom), and isotropic rows of
log-normal length put seven to nine eigenvalues above it. Outlying eigenvalues are counted against
the simulated edge only, the largest eigenvalue in `draws` draws: under that null K exceeds it
with probability 1/(draws + 1).

The singular values of a rectangular block, such as E × U, have a null of the last kind:

    K = Σ_k σ_k a_k b_kᵀ,     effective rank = (Σ_k σ_k)² / Σ_k σ_k²

Of a batch with itself σ_k are the eigenvalues, and the effective rank is that of
`spectrum`. It depends on how many rows and columns there are, so it is compared with random
directions of the observed norms in d_eff dimensions, 1/d_eff the mean square cosine of responses to
different prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    above_rounding,
    deletions,
    fitted_dimension,
    over_deletions,
)
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Numbers

DRAWS = 19
"""Simulated matrices."""


@dataclass(frozen=True)
class Null:
    """The spectrum of random score vectors.

    Attributes:
        name: "all parameters", "fitted dimension" or "observed norms"; see the module's docstring.
        dimension: d of the random rows.
        lower: Lower edge of the nonzero eigenvalues.
        upper: Upper edge.
        effective_rank: Of such a matrix: the Wishart ratio of expectations (nd + 2)/(n + d + 1),
            or the mean over the simulated draws.
        above: How many eigenvalues of K lie above `upper`, of "observed norms" alone; None of the
            Marchenko–Pastur nulls, which are curves: rows of different lengths put eigenvalues
            above their edges for any directions.
    """

    name: str
    dimension: float
    lower: float
    upper: float
    effective_rank: float
    above: int | None


def wishart_null(name: str, eigenvalues: Tensor, dimension: float) -> Null:
    """The Marchenko–Pastur edges for as many rows as there are eigenvalues, of the same trace.

    Args:
        name: Of the null.
        eigenvalues: (n,) of K.
        dimension: d.

    Returns:
        The null.
    """
    n, mean = len(eigenvalues), float(eigenvalues.mean())
    rank, root = (n * dimension + 2) / (n + dimension + 1), math.sqrt(n / dimension)
    edges = mean * (1 - root) ** 2, mean * (1 + root) ** 2
    return Null(name, dimension, *edges, rank, None)


def simulated_null(
    diagonals: tuple[Tensor, ...],
    values: Tensor,
    dimension: float,
    draws: int,
    rng: np.random.Generator,
) -> Null:
    """The null "observed norms": random directions, and norms as they are.

    Args:
        diagonals: (n,) K_ii of one batch with itself; or those of the rows and (m,) of the columns
            of a block of two batches.
        values: Eigenvalues of K, or singular values of the block.
        dimension: d_eff.
        draws: Simulated matrices.
        rng: Draws them.

    Returns:
        The null; of a block its effective rank is (Σσ)²/Σσ².
    """
    norms, n = torch.cat(diagonals).clamp_min(0).sqrt()[:, None].numpy(), len(diagonals[0])
    drawn: list[np.ndarray] = []
    for _ in range(draws):
        rows = norms * _random_directions(len(norms), dimension, rng)
        block = len(diagonals) > 1
        singular = np.linalg.svd(rows[:n] @ rows[n:].T if block else rows, compute_uv=False)
        drawn.append(singular if block else singular**2)
    sizes = np.stack(drawn)  # (draws, count)
    rank = float((sizes.sum(1) ** 2 / (sizes**2).sum(1)).mean())
    last = min(sizes.shape[1], round(dimension)) - 1
    lower, upper = float(sizes[:, last].min()), float(sizes[:, 0].max())
    return Null("observed norms", dimension, lower, upper, rank, int((values > upper).sum()))


def _random_directions(n: int, dimension: float, rng: np.random.Generator) -> np.ndarray:
    # Where d ≥ n, turned into the first n axes (Bartlett): row i has i − 1 normal coordinates along
    # the rows before it and a χ of d − i + 1 degrees of freedom across them. No size depends on d.
    rows = rng.normal(size=(n, n if dimension >= n else round(dimension)))
    if dimension >= n:
        rows = np.tril(rows, -1) + np.diag(np.sqrt(rng.chisquare(dimension - np.arange(n))))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


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


def singular_spectrum(
    matrix: Tensor,
    row_prompt: Tensor,
    column_prompt: Tensor,
    diagonals: tuple[Tensor, Tensor] | None = None,
    *,
    seed: int = 0,
) -> SingularValues:
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
    return SingularValues(values, rank, by_k, fitted, null)


def _of(values: Tensor, top: Sequence[int]) -> list[float]:
    """Effective rank, and the shares of the leading values."""
    total = float(values.sum())
    if not total > 0:
        return [math.nan] * (1 + len(top))
    return [total**2 / float(values.square().sum())] + [
        float(values[:k].sum()) / total for k in top
    ]
