"""One function F of samples, from which every number of this package is computed (T2), (T3).

With r_ik = s_ik(θ+ηv) − s_ik(sampler), c_ik = Σ_{j<k} r_ij (frozen after the end, because r is 0
there), W = e^c, m the mask and ω the sample weights (1/n):

    sequence         ℋ = Σ_i ω_i w_i Σ_k H_ik / Σ_i ω_i w_i,   w_i = W_i,t+1
    prefix           ℋ = Σ_k [ Σ_i ω_i W_ik m_ik H_ik / Σ_i ω_i W_ik ]
    doubly-robust    ℋ = prefix − Σ_ik ω_i (W_i,k+1 − W_ik) m_ik b_ik / Σ_i ω_i
    surprisal        ℋ = Σ_k [ Σ_i ω_i W_i,k+1 m_ik (−s_ik) / Σ_i ω_i W_i,k+1 ]

N is the same with m in place of m·H (surprisal: that of prefix), and h = ℋ/N. Values, derivatives
along v (dual numbers in r and H) and the influence of every sample (derivative by ω) all come from
this one F.

b_ik may use (p, t_<k) only; the estimator is then unbiased for every b. (prefix) is normalised at
each position and so already subtracts the mean entropy there: b predicts the rest of the entropy of
later tokens. For h it predicts the rest of Σ_{j>k} (H_ij − h).

(surprisal) takes no H, and s_ik = r_ik + s_ik(sampler). A token's own factor belongs to its weight,
because it is drawn with what it measures; the method is a reference for the others.

Standard errors by the infinitesimal jackknife over prompts (T11).

    SE² = P/(P−1) Σ_p ( φ_p − φ̄ )²,     φ_p = Σ_{i∈p} ω_i ∂F/∂ω_i

Every estimator is a function F(ω) of its sample weights, so one reverse-mode derivative gives the
influence of every sample, for values, derivatives, ratios and differences alike. The units are
prompt draws: responses of one group are not independent of each other.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from isentrope.nouns.differences import derivatives_at_zero
from isentrope.nouns.estimate import ROUNDING, Estimate, Functional

Method = Literal["sequence", "prefix", "doubly-robust", "surprisal"]

UNITS = {"per_sequence": "nats per sequence", "per_token": "nats per token"}
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class EstimatorOptions:
    """Which entropy is estimated, by which method, and how wide intervals are.

    Attributes:
        functional: "per_token" (h) or "per_sequence" (ℋ).
        method: "prefix", "sequence", "doubly-robust" or "surprisal".
        confidence: Nominal coverage of the intervals.
    """

    functional: Functional = "per_token"
    method: Method = "prefix"
    confidence: float = 0.95


@dataclass(frozen=True)
class Functionals:
    """Which F: a method, and ℋ ("per_sequence") or h ("per_token").

    Attributes:
        functional: "per_sequence" or "per_token".
        method: "sequence", "prefix", "doubly-robust" or "surprisal".
        tokens: (n, t) float64, tokens that each entry of H stands for (the mask, or lengths).
        baseline: (n, t) float64, b of the doubly-robust method; None otherwise.
        sampler_logprobs: (n, t) float64, nats, of the surprisal method; None otherwise.
    """

    functional: Functional
    method: Method
    tokens: Tensor
    baseline: Tensor | None = None
    sampler_logprobs: Tensor | None = None

    def __post_init__(self) -> None:
        if self.functional not in UNITS:
            raise ValueError(f"functional={self.functional!r}; choose one of {tuple(UNITS)}.")
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r}; choose one of {METHODS}.")

    @property
    def unit(self) -> str:
        """Unit of F."""
        return UNITS[self.functional]

    @property
    def symbol(self) -> str:
        """What F is called in messages."""
        return "H"

    @property
    def withheld(self) -> str:
        """Why no number of this F has an interval; empty where it may have one."""
        return ""

    def __call__(self, omega: Tensor, log_ratios: Tensor, entropies: Tensor) -> Tensor:
        """F(ω; r, H).

        Args:
            omega: (n,) sample weights ω, any positive scale.
            log_ratios: (n, t) r in nats, 0 where there is no token.
            entropies: (n, t) H in nats, 0 where there is no token; surprisal does not read it.

        Returns:
            Scalar ℋ or h, in `unit`.
        """
        omega = omega / omega.sum()  # degree 0 in ω, which the jackknife needs
        log_weights = log_ratios.cumsum(1)  # (n, t): log W_i,k+1
        before = log_weights - log_ratios  # (n, t): log W_ik
        if self.method == "sequence":
            weights = omega * stable_exp(log_weights[:, -1])  # (n,): a common factor cancels
            weights = weights / weights.sum()
            entropy, length = weights @ entropies.sum(1), weights @ self.tokens.sum(1)
        else:
            entropy, length = _prefix(omega, before, entropies, self.tokens)
        if self.sampler_logprobs is not None:
            surprisals = -(log_ratios + self.sampler_logprobs)
            entropy, _ = _prefix(omega, log_weights, surprisals, self.tokens)
        if self.baseline is not None:
            jump = (log_weights.exp() - before.exp()) * self.baseline  # (n, t), mean 0 given t_<k
            entropy = entropy - omega @ jump.sum(1)
        return entropy / length if self.functional == "per_token" else entropy


def _prefix(
    omega: Tensor, log_weights: Tensor, entropies: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    weights = omega[:, None] * stable_exp(log_weights)  # (n, t)
    weights = weights / weights.sum(0)  # self-normalised at each position, over all n sequences
    return (weights * entropies).sum(), (weights * tokens).sum()


def stable_exp(log_weights: Tensor) -> Tensor:
    """Weights up to a factor for each position, without overflow."""
    return (log_weights - log_weights.detach().amax(0)).exp()


def along(
    functional: Functionals,
    omega: Tensor,
    log_ratios: tuple[Tensor, ...],
    entropies: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """F and its first two derivatives along the path, by dual numbers (T3).

    Args:
        functional: F.
        omega: (n,) sample weights.
        log_ratios: r and its derivatives (r, ∂_v r, ∂²_v r), each (n, t); a shorter tuple reads
            missing derivatives as zero.
        entropies: The same for H.

    Returns:
        (F, dF/dη, d²F/dη²) at η = 0.
    """

    def path(series: tuple[Tensor, ...], e: Tensor) -> Tensor:
        value = series[0]
        for k, derivative in enumerate(series[1:], 1):
            value = value + derivative * (e**k / k)  # k! = k for both
        return value

    return derivatives_at_zero(
        lambda e: functional(omega, path(log_ratios, e), path(entropies, e)), 2
    )


@dataclass(frozen=True)
class Units:
    """The independent units behind samples, such as prompt draws, in the order of their labels.

    Attributes:
        place: (n,) int64, the unit of each sample, numbered from 0.
        count: P, their number.
    """

    place: Tensor
    count: int

    @classmethod
    def of(cls, labels: Tensor) -> Units:
        """Number the units.

        Args:
            labels: (n,) equal for the samples of a unit.

        Returns:
            The units.
        """
        units, place = labels.unique(return_inverse=True)
        return cls(place, len(units))

    @property
    def sizes(self) -> Tensor:
        """(P,) int64, the samples of each unit."""
        return self.place.bincount(minlength=self.count)

    def sums(self, values: Tensor) -> Tensor:
        """Sums over the samples of each unit.

        Args:
            values: (..., n).

        Returns:
            (..., P) float64.
        """
        zeros = torch.zeros(*values.shape[:-1], self.count, dtype=torch.float64)
        return zeros.index_add_(-1, self.place, values.double())


@dataclass(frozen=True)
class Jackknifed:
    """A vector of statistics of one sample, with their joint error.

    Attributes:
        values: (m,) the statistics at ω = 1/n.
        influences: (m, P) φ − φ̄, the influence of each unit on each statistic.
        n_units: P.
    """

    values: Tensor
    influences: Tensor
    n_units: int

    @property
    def covariance(self) -> Tensor:
        """(m, m) joint covariance of the statistics; NaN with a single unit."""
        scale = self.n_units / (self.n_units - 1) if self.n_units > 1 else math.nan
        return scale * self.influences @ self.influences.T

    @property
    def standard_errors(self) -> Tensor:
        """(m,) standard errors; NaN with a single unit."""
        return self.covariance.diagonal().sqrt()

    def estimate(self, row: int, **options: Any) -> Estimate:
        """One of the statistics with its interval.

        Args:
            row: Its row.
            **options: Of `Estimate.from_influences`.

        Returns:
            The estimate.
        """
        return Estimate.from_influences(float(self.values[row]), self.influences[row], **options)

    def less(self, row: int) -> Jackknifed:
        """Every statistic less one of them, without what rounding alone leaves.

        Args:
            row: Row of that one.

        Returns:
            The differences; exactly 0 where two statistics are the same number.
        """
        floor = ROUNDING * float(self.values.abs().max())
        parts = (self.values - self.values[row], self.influences - self.influences[row])
        values, influences = (torch.where(x.abs() > floor, x, 0.0) for x in parts)
        return replace(self, values=values, influences=influences)


def infinitesimal_jackknife(
    statistics: Callable[[Tensor], Tensor], prompt_index: Tensor
) -> Jackknifed:
    """Evaluate statistics F(ω) at equal weights, and the influence of every prompt on them.

    Args:
        statistics: Maps (n,) float64 weights to an (m,) vector, differentiably; homogeneous of
            degree 0 in the weights.
        prompt_index: (n,) which prompt draw each sample belongs to.

    Returns:
        Values and influences by unit.
    """
    units = Units.of(prompt_index)
    omega = torch.full((len(prompt_index),), 1.0 / len(prompt_index), dtype=torch.float64)

    def twice(omega: Tensor) -> tuple[Tensor, Tensor]:
        values = statistics(omega)
        return values, values

    jacobian, values = torch.func.jacrev(twice, has_aux=True)(omega)
    by_sample = jacobian * omega  # (m, n)
    by_unit = units.sums(by_sample.detach())  # (m, P)
    by_unit -= by_unit.mean(1, keepdim=True)
    return Jackknifed(values.detach(), by_unit, units.count)
