"""The eigenvalues of a Fisher kernel (T7), against those of random score vectors.

    effective rank = (Σ_k λ_k)² / Σ_k λ_k² = (tr K)² / |K|²_F

K = W P Wᵀ is a Gram matrix. The null models that it is compared with are in `null_spectra`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.fisher.null_spectra import TOP, Null, simulated_null, wishart_null
from isentrope.attribution.fisher.prompt_pairs import (
    above_rounding,
    delete_one,
    fitted_dimension,
)
from isentrope.attribution.fisher.square import SquareKernel, oversample, ritz_pairs
from isentrope.attribution.ranks import TIED, tied
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import Numbers


@dataclass(frozen=True)
class Eigenvalues:
    """Eigenvalues of a kernel.

    Attributes:
        eigenvalues: (n,) descending, in the unit of K; 0 where one is rounding (`above_rounding`).
        effective_rank: At this number of prompts and responses.
        shares: By k, the share of the k leading eigenvalues in the trace. Where eigenvalues are not
            separated from the bulk, the jackknife's error is too large (up to twice).
        fitted_dimension: d_eff.
        participation: (top,) 1/Σ_i u_ki⁴: the number of sequences over which each leading
            eigenvector spreads; NaN for one whose eigenvalue is 0.
        nulls: The random matrices it is compared with.
    """

    eigenvalues: Numbers
    effective_rank: Estimate
    shares: dict[int, Estimate]
    fitted_dimension: Estimate
    participation: Numbers
    nulls: tuple[Null, ...]


@dataclass(frozen=True)
class Spectrum(Eigenvalues):
    """Eigenvalues of a kernel and the sequences behind them.

    Attributes:
        vectors: (n, top) unit eigenvectors of the leading ones.
        norm_scores: (n,) (log K_ii − median)/(1.4826 · median absolute deviation); −∞ for a zero.
    """

    vectors: Tensor = field(repr=False)
    norm_scores: Tensor = field(repr=False)

    def carriers(self, k: int, share: float = 0.5) -> list[int]:
        """The smallest set of sequences that holds a share of a leading eigenvector.

        Args:
            k: Index of the eigenvector, 0 for the largest.
            share: Of Σ_i u_ki² = 1.

        Returns:
            Positions, the largest weight first; of weights tied to rounding the first position.
        """
        weights = self.vectors[:, k].square()
        order = _descending(weights)
        needed = int((weights[order].cumsum(0) < share * (1 - TIED)).sum()) + 1
        return order[:needed].tolist()

    def norm_outliers(self, threshold: float = 3.5) -> list[int]:
        """Sequences whose score vector is far longer or shorter than the others'.

        Args:
            threshold: On |norm_scores|.

        Returns:
            Positions, the farthest first; zero rows come first of all.
        """
        zero, distance = self.norm_scores.isinf(), self.norm_scores.abs()
        farthest = distance[~zero].max()
        order = _descending(torch.where(zero, 2 * farthest + 1, distance))
        return order[: int((distance > threshold).sum())].tolist()


def kernel_spectrum(
    kernel: SquareKernel,
    dimension: int | None = None,
    *,
    top: Sequence[int] = TOP,
    draws: int = 19,
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
    diagonal, pairs = kernel.diagonal, kernel.pairs
    if not float(diagonal.max()) > 0:
        raise ValueError(
            "The kernel is zero: no sequence has a score vector, so there is no spectrum."
        )
    values, vectors = torch.linalg.eigh(kernel.matrix)
    values, vectors = values.flip(0), vectors.flip(1)
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
    eigenvalues = above_rounding(values)
    spread = 1 / vectors[:, :largest].pow(4).sum(0)
    return Spectrum(
        eigenvalues=eigenvalues,
        vectors=vectors[:, :largest],
        effective_rank=pairs.estimate(trace.square() / square, everything, "sequences"),
        shares=_shares(kernel, values, vectors[:, : oversample(largest)], top),
        fitted_dimension=fitted,
        participation=torch.where(eigenvalues[:largest] > 0, spread, math.nan),
        norm_scores=_norm_scores(diagonal),
        nulls=tuple(nulls),
    )


def _shares(
    kernel: SquareKernel, values: Tensor, start: Tensor, top: Sequence[int]
) -> dict[int, Estimate]:
    total = values.sum()
    deleted = []
    for kept, rest in kernel.deletions():
        leading, _ = ritz_pairs(rest.matrix, start[kept])
        deleted.append(
            (leading.cumsum(0) / rest.matrix.trace())[[min(k, len(leading)) - 1 for k in top]]
        )
    by_k = torch.stack(deleted, 1)  # (k, P)
    n = kernel.pairs.n_prompts
    return {
        k: delete_one(values[:k].sum() / total, row, n, "share of tr K")
        for k, row in zip(top, by_k, strict=True)
    }


def _descending(values: Tensor) -> Tensor:
    """The order from the largest; of values tied to rounding the first comes first."""
    return torch.from_numpy(tied(-values.numpy())).argsort(stable=True)


def _norm_scores(diagonal: Tensor) -> Tensor:
    logs = diagonal.clamp_min(0).log()
    finite = logs[logs.isfinite()]
    centre = finite.quantile(0.5)
    scale = 1.4826 * (finite - centre).abs().quantile(0.5)
    return (logs - centre) / scale.clamp_min(1e-6)  # equal norms: rounding must not give outliers
