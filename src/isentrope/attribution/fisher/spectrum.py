"""The eigenvalues of a Fisher kernel (T7), against those of random score vectors.

    effective rank = (Σ_k λ_k)² / Σ_k λ_k² = (tr K)² / |K|²_F

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
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.fisher.prompt_pairs import (
    above_rounding,
    at_most,
    delete_one,
    fitted_dimension,
)
from isentrope.attribution.fisher.square import SquareKernel, oversample, ritz_pairs
from isentrope.attribution.mid_ranks import TIED, tied
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Numbers

NULL_DRAWS = 19
"""Simulated matrices."""

LEADING_SHARES = (1, 2, 5, 10, 20)
"""Numbers of leading values whose share is reported; those above min(n, m) are omitted."""


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
    n = len(eigenvalues)
    mean = float(eigenvalues.mean())
    rank = (n * dimension + 2) / (n + dimension + 1)
    root = math.sqrt(n / dimension)
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
    norms = torch.cat(diagonals).clamp_min(0).sqrt()[:, None].numpy()
    n = len(diagonals[0])
    count = len(norms)
    block = len(diagonals) > 1
    drawn: list[np.ndarray] = []
    for _ in range(draws):
        # Where d ≥ n, turned into the first n axes (Bartlett): row i has i − 1 normal coordinates
        # along the rows before it and a χ of d − i + 1 degrees of freedom across them. No size
        # depends on d.
        rows = rng.normal(size=(count, count if dimension >= count else round(dimension)))
        if dimension >= count:
            across = np.sqrt(rng.chisquare(dimension - np.arange(count)))
            rows = np.tril(rows, -1) + np.diag(across)
        rows = norms * (rows / np.linalg.norm(rows, axis=1, keepdims=True))
        singular = np.linalg.svd(rows[:n] @ rows[n:].T if block else rows, compute_uv=False)
        drawn.append(singular if block else singular**2)
    sizes = np.stack(drawn)  # (draws, count)
    rank = float((sizes.sum(1) ** 2 / (sizes**2).sum(1)).mean())
    last = min(sizes.shape[1], round(dimension)) - 1
    lower = float(sizes[:, last].min())
    upper = float(sizes[:, 0].max())
    return Null("observed norms", dimension, lower, upper, rank, int((values > upper).sum()))


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a kernel, and the sequences behind them.

    Attributes:
        eigenvalues: (n,) descending, in the unit of K; 0 where one is rounding (`above_rounding`).
        effective_rank: At this number of prompts and responses.
        shares: By k, the share of the k leading eigenvalues in the trace. Where eigenvalues are not
            separated from the bulk, the jackknife's error is too large (up to twice).
        fitted_dimension: d_eff.
        participation: (top,) 1/Σ_i u_ki⁴: the number of sequences over which each leading
            eigenvector spreads; NaN for one whose eigenvalue is 0.
        nulls: The random matrices it is compared with.
        leading_carriers: Sequences that make up half of the first eigenvector.
        norm_outliers: Sequences whose norm stands out.
    """

    eigenvalues: Numbers
    effective_rank: Estimate
    shares: dict[int, Estimate]
    fitted_dimension: Estimate
    participation: Numbers
    nulls: tuple[Null, ...]
    leading_carriers: tuple[int, ...]
    norm_outliers: tuple[int, ...]


def carriers(vector: Tensor, share: float = 0.5) -> list[int]:
    """The smallest set of sequences that holds a share of an eigenvector.

    Args:
        vector: (n,) of unit length.
        share: Of Σ_i u_i² = 1.

    Returns:
        Positions, the largest weight first; of weights tied to rounding the first position.
    """
    weights = vector.square()
    order = _descending(weights)
    needed = int((weights[order].cumsum(0) < share * (1 - TIED)).sum()) + 1
    return order[:needed].tolist()


def norm_outliers(diagonal: Tensor, threshold: float = 3.5) -> list[int]:
    """Sequences whose score vector is far longer or shorter than the others'.

    Args:
        diagonal: (n,) K_ii.
        threshold: On |log K_ii − median|/(1.4826 · median absolute deviation).

    Returns:
        Positions, the farthest first; zero rows come first of all.
    """
    zero = diagonal <= 0
    logs = diagonal.clamp_min(0).log()
    centre = logs[~zero].quantile(0.5)
    scale = 1.4826 * (logs[~zero] - centre).abs().quantile(0.5)
    distance = (logs - centre).abs() / scale.clamp_min(1e-6)  # equal norms differ by rounding
    order = _descending(torch.where(zero, 2 * distance[~zero].max() + 1, distance))
    return order[: int((distance > threshold).sum())].tolist()


def kernel_spectrum(
    kernel: SquareKernel,
    dimension: int | None = None,
    *,
    top: Sequence[int] = LEADING_SHARES,
    draws: int = NULL_DRAWS,
    seed: int = 0,
) -> Spectrum:
    """Eigenvalues, effective rank, outlier sequences, and the nulls.

    Args:
        kernel: K of one batch with itself.
        dimension: Number of trainable parameters, for the null "all parameters"; None omits it.
        top: Numbers of leading eigenvalues whose share is reported; those above n are omitted.
        draws: Simulated matrices of the null "observed norms".
        seed: Of the simulation.

    Returns:
        The spectrum.

    Raises:
        ValueError: If the kernel is zero.
    """
    diagonal = kernel.diagonal
    pairs = kernel.pairs
    if not float(diagonal.max()) > 0:
        raise ValueError(
            "The kernel is zero: no sequence has a score vector, so there is no spectrum."
        )
    values, vectors = torch.linalg.eigh(kernel.matrix)
    values = values.flip(0)
    vectors = vectors.flip(1)
    top = [k for k in top if k <= len(kernel)]
    largest = max(top, default=1)
    fitted = fitted_dimension(kernel.matrix, pairs, (diagonal, diagonal))
    trace, square = kernel.norms()
    everything = torch.ones_like(pairs.same)
    nulls = [] if dimension is None else [wishart_null("all parameters", values, dimension)]
    if math.isfinite(fitted.value):
        nulls.append(wishart_null("fitted dimension", values, fitted.value))
        rng = np.random.default_rng(seed)
        nulls.append(simulated_null((diagonal,), values, fitted.value, draws, rng))
    start = vectors[:, : oversample(largest)]
    by_deletion = list[Tensor]()
    for keep, reduced in kernel.deletions():
        leading = ritz_pairs(reduced.matrix, start[keep])[0].cumsum(0) / reduced.matrix.trace()
        by_deletion.append(leading[[min(k, len(leading)) - 1 for k in top]])
    shares = {
        k: delete_one(values[:k].sum() / values.sum(), row, pairs.n_prompts, "share of tr K")
        for k, row in zip(top, torch.stack(by_deletion, 1), strict=True)
    }
    eigenvalues = above_rounding(values)
    spread = 1 / vectors[:, :largest].pow(4).sum(0)
    return Spectrum(
        eigenvalues=eigenvalues,
        effective_rank=at_most(
            len(kernel), pairs.estimate(trace.square() / square, everything, "sequences")
        ),
        shares=shares,
        fitted_dimension=fitted,
        participation=torch.where(eigenvalues[:largest] > 0, spread, math.nan),
        nulls=tuple(nulls),
        leading_carriers=tuple(carriers(vectors[:, 0])),
        norm_outliers=tuple(norm_outliers(diagonal)),
    )


def _descending(values: Tensor) -> Tensor:
    """The order from the largest; of values tied to rounding the first comes first."""
    return torch.from_numpy(tied(-values.numpy())).argsort(stable=True)
