"""One function F of samples, from which every number of this package is computed (T2), (T3).

With r_ik = s_ik(θ+ηv) − s_ik(sampler), c_ik = Σ_{j<k} r_ij (frozen after the end, because r is 0
there), W = e^c, m the mask and ω the sample weights (1/n):

    sequence         ℋ = Σ_i ω_i w_i Σ_k H_ik / Σ_i ω_i w_i,   w_i = W_i,t+1
    prefix           ℋ = Σ_k [ Σ_i ω_i W_ik m_ik H_ik / Σ_i ω_i W_ik ]
    doubly-robust    ℋ = prefix − Σ_ik ω_i (W_i,k+1 − W_ik) m_ik b_ik / Σ_i ω_i
    surprisal        ℋ = Σ_k [ Σ_i ω_i W_i,k+1 m_ik (−s_ik) / Σ_i ω_i W_i,k+1 ]

N is the same with m in place of m·H (surprisal: that of prefix), and h = ℋ/N. Values, derivatives
along v (dual numbers in r and H) and the influence of every sample (derivative by ω, `jackknife`)
all come from this one F.

b_ik may use (p, t_<k) only; the estimator is then unbiased for every b. (prefix) is normalised at
each position and so already subtracts the mean entropy there: b predicts the rest of the entropy of
later tokens. For h it predicts the rest of Σ_{j>k} (H_ij − h).

(surprisal) takes no H, and s_ik = r_ik + s_ik(sampler). A token's own factor belongs to its weight,
because it is drawn with what it measures; the method is a reference for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from isentrope.nouns.choices import METHODS, Functional, Method
from isentrope.nouns.forward_mode import derivatives_along

UNITS = {"per_sequence": "nats per sequence", "per_token": "nats per token"}


@dataclass(frozen=True)
class Functionals:
    """Which F: a method, and ℋ ("per_sequence") or h ("per_token").

    Attributes:
        symbol: What F is called in messages.
        functional: "per_sequence" or "per_token".
        method: "sequence", "prefix", "doubly-robust" or "surprisal".
        tokens: (n, t) float64, tokens that each entry of H stands for (the mask, or lengths).
        baseline: (n, t) float64, b of the doubly-robust method; None otherwise.
        sampler_logprobs: (n, t) float64, nats, of the surprisal method; None otherwise.
    """

    symbol: ClassVar[str] = "H"

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
            entropy = weights @ entropies.sum(1)
            length = weights @ self.tokens.sum(1)
        else:
            entropy, length = _average_by_position(omega, before, entropies, self.tokens)
        if self.sampler_logprobs is not None:
            surprisals = -(log_ratios + self.sampler_logprobs)
            entropy, _ = _average_by_position(omega, log_weights, surprisals, self.tokens)
        if self.baseline is not None:
            jump = (log_weights.exp() - before.exp()) * self.baseline  # (n, t), mean 0 given t_<k
            entropy = entropy - omega @ jump.sum(1)
        return entropy / length if self.functional == "per_token" else entropy


def _average_by_position(
    omega: Tensor, log_weights: Tensor, entropies: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """ℋ and N with weights that are normalised at each position."""
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
    order: int = 2,
) -> tuple[Tensor, ...]:
    """F and its first derivatives along the path, by dual numbers (T3).

    Args:
        functional: F.
        omega: (n,) sample weights.
        log_ratios: r and its derivatives (r, ∂_v r, ∂²_v r), each (n, t); a shorter tuple reads
            missing derivatives as zero.
        entropies: The same for H.
        order: Highest derivative, 1 or 2.

    Returns:
        (F, dF/dη) or (F, dF/dη, d²F/dη²) at η = 0.
    """
    still = torch.zeros_like(log_ratios[0])
    paths = (*log_ratios, still, still)[:3], (*entropies, still, still)[:3]
    point, direction, curvature = zip(*paths, strict=True)
    return derivatives_along(lambda x: functional(omega, *x), point, direction, order, curvature)
