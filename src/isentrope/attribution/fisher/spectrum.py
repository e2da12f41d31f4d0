"""The eigenvalues of a Fisher kernel (T7), against those of random score vectors.

    effective rank = (Σ_k λ_k)² / Σ_k λ_k² = (tr K)² / |K|²_F

K = W P Wᵀ is a Gram matrix. Three null models, each of K's shape and trace, and the question that
each answers:

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

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.fisher.block_model import oversample, ritz_pairs, squared_norm
from isentrope.attribution.fisher.prompt_pairs import (
    PromptPairs,
    cosines,
    delete_one,
    estimate_columns,
    relation_masks,
    require_kernel,
)
from isentrope.estimate import Estimate


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


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a kernel and the sequences behind them.

    Attributes:
        eigenvalues: (n,) descending, in the unit of K.
        vectors: (n, top) unit eigenvectors of the leading ones.
        effective_rank: At this number of prompts and responses.
        shares: By k, the share of the k leading eigenvalues in the trace. Where eigenvalues are not
            separated from the bulk, the jackknife's error is too large (up to twice).
        fitted_dimension: d_eff.
        participation: (top,) 1/Σ_i u_ki⁴: the number of sequences over which each leading
            eigenvector spreads.
        norm_scores: (n,) (log K_ii − median)/(1.4826 · median absolute deviation); −∞ for a zero.
        nulls: The random matrices it is compared with.
        warnings: What limits the numbers.
    """

    eigenvalues: Tensor
    vectors: Tensor = field(repr=False)
    effective_rank: Estimate
    shares: dict[int, Estimate]
    fitted_dimension: Estimate
    participation: Tensor
    norm_scores: Tensor = field(repr=False)
    nulls: tuple[Null, ...]
    warnings: tuple[str, ...]

    def carriers(self, k: int, share: float = 0.5) -> list[int]:
        """The smallest set of sequences that holds a share of a leading eigenvector.

        Args:
            k: Index of the eigenvector, 0 for the largest.
            share: Of Σ_i u_ki² = 1.

        Returns:
            Positions, the largest weight first.
        """
        weights, order = self.vectors[:, k].square().sort(descending=True)
        needed = int((weights.cumsum(0) < share).sum()) + 1
        return order[:needed].tolist()

    def norm_outliers(self, threshold: float = 3.5) -> list[int]:
        """Sequences whose score vector is far longer or shorter than the others'.

        Args:
            threshold: On |norm_scores|.

        Returns:
            Positions, the farthest first; zero rows come first of all.
        """
        distance, order = self.norm_scores.abs().sort(descending=True, stable=True)
        return order[: int((distance > threshold).sum())].tolist()

    def to_frame(self) -> Any:
        """A pandas table of the estimates.

        Returns:
            Columns quantity, value, se, ci_low, ci_high, prompts.
        """
        import pandas as pd

        named = {"effective_rank": self.effective_rank, "fitted_dimension": self.fitted_dimension}
        named |= {f"share of top {k}": share for k, share in self.shares.items()}
        return pd.DataFrame([{"quantity": q} | estimate_columns(e) for q, e in named.items()])


def kernel_spectrum(
    matrix: Tensor,
    dimension: int | None = None,
    prompt_index: Tensor | None = None,
    *,
    top: Sequence[int] = (1, 2, 5, 10, 20),
    draws: int = 19,
    seed: int = 0,
    rounding: float = 1e-6,
) -> Spectrum:
    """Eigenvalues, effective rank, outlier sequences, and the nulls.

    Args:
        matrix: (n, n) K of one batch with itself.
        dimension: Number of trainable parameters, for the null "all parameters"; None omits it.
        prompt_index: (n,) prompt draw of each sequence; None: each is of its own prompt.
        top: Numbers of leading eigenvalues whose share is reported; those above n are omitted.
        draws: Simulated matrices of the null "observed norms"; 0 omits it.
        seed: Of the simulation.
        rounding: Relative rounding error of the entries, see `require_kernel`.

    Returns:
        The spectrum.

    Raises:
        ValueError: If the matrix is not a kernel or zero, or sizes differ.
    """
    prompts = torch.arange(len(matrix)) if prompt_index is None else prompt_index
    matrix, prompts = require_kernel(matrix, prompts, rounding=rounding)
    diagonal = matrix.diagonal()
    if not float(diagonal.max()) > 0:
        raise ValueError(
            "The kernel is zero: no sequence has a score vector, so there is no spectrum."
        )
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0), vectors.flip(1)
    top = [k for k in top if k <= len(matrix)]
    largest = max(top, default=1)
    pairs = PromptPairs(prompts, prompts)
    fitted = _fitted_dimension(matrix, pairs)
    nulls = [] if dimension is None else [wishart_null("all parameters", values, dimension)]
    if math.isfinite(fitted.value):
        nulls.append(wishart_null("fitted dimension", values, fitted.value))
        if draws:
            rng = np.random.default_rng(seed)
            nulls.append(_simulated_null(diagonal, values, fitted.value, draws, rng))
    zeros = int((diagonal <= 0).sum())
    return Spectrum(
        eigenvalues=values,
        vectors=vectors[:, :largest],
        effective_rank=_effective_rank(matrix, pairs),
        shares=_shares(matrix, pairs, values, vectors[:, : oversample(largest)], top),
        fitted_dimension=fitted,
        participation=1 / vectors[:, :largest].pow(4).sum(0),
        norm_scores=_norm_scores(diagonal),
        nulls=tuple(nulls),
        warnings=(f"{zeros} sequences have a zero score vector.",) if zeros else (),
    )


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
    lower, upper = (mean * (1 + sign * math.sqrt(n / dimension)) ** 2 for sign in (-1, 1))
    rank = (n * dimension + 2) / (n + dimension + 1)
    return Null(name, dimension, lower, upper, rank, None)


def marchenko_pastur_eigenvalues(n: int, dimension: float, mean_eigenvalue: float) -> Tensor:
    """The eigenvalues of a typical matrix of the Marchenko–Pastur law, by rank.

    Args:
        n: Rows.
        dimension: d.
        mean_eigenvalue: tr K/n.

    Returns:
        (min(n, d),) descending quantiles at (k − ½)/n of the nonzero part, in the unit of K.
    """
    count = min(n, round(dimension))
    lower, upper = (mean_eigenvalue * (1 + s * math.sqrt(n / dimension)) ** 2 for s in (-1, 1))
    angle = torch.linspace(0, math.pi, 4001, dtype=torch.float64)
    x = (lower + upper) / 2 - (upper - lower) / 2 * angle.cos()  # even steps at both edges
    density = marchenko_pastur_density(x, n, dimension, mean_eigenvalue)
    mass = torch.cat([x.new_zeros(1), torch.cumulative_trapezoid(density, x)])
    positions = (count - torch.arange(count, dtype=torch.float64) - 0.5) / count * mass[-1]
    place = torch.searchsorted(mass, positions).clamp(1, len(x) - 1)
    share = (positions - mass[place - 1]) / (mass[place] - mass[place - 1]).clamp_min(1e-300)
    return x[place - 1] + share * (x[place] - x[place - 1])


def marchenko_pastur_density(x: Tensor, n: int, dimension: float, mean_eigenvalue: float) -> Tensor:
    """Density of the nonzero eigenvalues, to be drawn over their histogram.

    Args:
        x: Eigenvalues, in the unit of K.
        n: Rows.
        dimension: d.
        mean_eigenvalue: tr K/n.

    Returns:
        Density per eigenvalue, in the shape of `x`; it integrates to min(1, d/n), the rest is at 0.
    """
    lower, upper = (mean_eigenvalue * (1 + s * math.sqrt(n / dimension)) ** 2 for s in (-1, 1))
    root = ((upper - x) * (x - lower)).clamp_min(0).sqrt()
    height = dimension / (2 * math.pi * n * mean_eigenvalue)
    return torch.where(root > 0, height * root / x, torch.zeros_like(root))


def _effective_rank(matrix: Tensor, pairs: PromptPairs) -> Estimate:
    trace, square = squared_norm(matrix, pairs)
    everything = torch.ones_like(pairs.same)
    return pairs.estimate(trace.square() / square, everything, "sequences")


def _shares(
    matrix: Tensor, pairs: PromptPairs, values: Tensor, start: Tensor, top: Sequence[int]
) -> dict[int, Estimate]:
    total = values.sum()
    deleted = []
    for prompt in range(pairs.n_prompts):
        kept = pairs.rows != prompt
        rest = matrix[kept][:, kept]
        leading, _ = ritz_pairs(rest, start[kept])
        deleted.append((leading.cumsum(0) / rest.trace())[[min(k, len(leading)) - 1 for k in top]])
    by_k = torch.stack(deleted, 1)  # (k, P)
    n = pairs.n_prompts
    return {
        k: delete_one(values[:k].sum() / total, row, n, "share of tr K")
        for k, row in zip(top, by_k, strict=True)
    }


def _fitted_dimension(matrix: Tensor, pairs: PromptPairs) -> Estimate:
    diagonal = matrix.diagonal()
    defined = (diagonal > 0)[:, None] & (diagonal > 0)
    mask = relation_masks(pairs)["cross_prompt"] & defined
    squares = pairs.means(cosines(matrix, diagonal, diagonal).square(), mask)
    return pairs.estimate(1 / squares, mask, "dimensions")


def _norm_scores(diagonal: Tensor) -> Tensor:
    logs = diagonal.clamp_min(0).log()
    finite = logs[logs.isfinite()]
    centre = finite.quantile(0.5)
    scale = 1.4826 * (finite - centre).abs().quantile(0.5)
    return (logs - centre) / scale.clamp_min(1e-6)  # equal norms: rounding must not give outliers


def _simulated_null(
    diagonal: Tensor, values: Tensor, dimension: float, draws: int, rng: np.random.Generator
) -> Null:
    n, norms = len(diagonal), diagonal.clamp_min(0).sqrt()[:, None].numpy()
    count = min(n, round(dimension))
    squares = np.stack(
        [
            np.linalg.svd(norms * _random_directions(n, dimension, rng), compute_uv=False) ** 2
            for _ in range(draws)
        ]
    )  # (draws, count)
    rank = float((squares.sum(1) ** 2 / (squares**2).sum(1)).mean())
    lower, upper = float(squares[:, count - 1].min()), float(squares[:, 0].max())
    above = int((values > upper).sum())
    return Null("observed norms", dimension, lower, upper, rank, above)


def _random_directions(n: int, dimension: float, rng: np.random.Generator) -> np.ndarray:
    # Where d ≥ n, turned into the first n axes (Bartlett): row i has i − 1 normal coordinates along
    # the rows before it and a χ of d − i + 1 degrees of freedom across them. No size depends on d.
    rows = rng.normal(size=(n, n if dimension >= n else round(dimension)))
    if dimension >= n:
        rows = np.tril(rows, -1) + np.diag(np.sqrt(rng.chisquare(dimension - np.arange(n))))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
