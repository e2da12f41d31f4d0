"""How far the weights can be trusted: effective sample size, PSIS k̂, and a verdict (T2).

The verdict reads the whole-sequence weights, the worst of all prefixes, and never changes them:
"trust" (use the number and its interval), "smooth" (k̂ beyond its bound or ESS below half of n:
the number is a hint, no interval), "resample" (k̂ ≥ 1, or ESS below a tenth of n, or a mean
weight that is not 1 because θ + ηv has left the sample's support: draw fresh responses from
θ + ηv instead). The weights at θ itself, policy over sampler, are judged in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from arviz_stats.base import array_stats  # pyright: ignore
from torch import Tensor

Verdict = Literal["trust", "smooth", "resample"]
VERDICTS: tuple[Verdict, ...] = ("trust", "smooth", "resample")
"""From good to bad."""

HARMLESS = 0.99
"""ESS/n from which weights are so even that the shape of their tail does not matter."""


ADRIFT = 0.1
"""How far from 1 the mean weight may be, beyond five of its standard errors."""


@dataclass(frozen=True)
class Trust:
    """Diagnostics of one set of prefix weights.

    Attributes:
        ess: Effective sample size, averaged over positions by the tokens there.
        ess_by_position: (t,) effective sample size of W_ik at each position k.
        ess_whole: Effective sample size of the whole-sequence weights: the last and worst.
        mean_weight: Mean whole-sequence weight, not normalised; its expectation is 1.
        khat: Pareto shape of the tail of the whole-sequence weights; NaN if they are too few
            or all equal.
        bound: Largest acceptable k̂ for this n, min(1 − 1/log10 n, 0.7) (Vehtari et al., PSIS).
        verdict: "trust", "smooth" or "resample".
    """

    ess: float
    ess_by_position: Tensor
    ess_whole: float
    mean_weight: float
    khat: float
    bound: float
    verdict: Verdict

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the verdict says of a number made with these weights; nothing for "trust"."""
        return _WARNINGS[self.verdict]

    def or_worse(self, other: Trust) -> Trust:
        """The one with the worse verdict, where a number uses both sets of weights.

        Args:
            other: Diagnostics of the other set.

        Returns:
            This one, unless the other's verdict is worse.
        """
        return max(self, other, key=lambda trust: VERDICTS.index(trust.verdict))


_WARNINGS: dict[Verdict, tuple[str, ...]] = {
    "trust": (),
    "smooth": (
        "The importance weights are too uneven here: the value is a hint, its error bar is not to "
        "be trusted.",
    ),
    "resample": (
        "The importance weights have collapsed here: draw fresh responses from the policy itself "
        '(for ΔH, method "resampled").',
    ),
}


def diagnose(log_ratios: Tensor, tokens: Tensor) -> Trust:
    """Judge importance weights.

    Args:
        log_ratios: (n, t) per-token log-ratios, 0 where there is no token.
        tokens: (n, t) mask or token counts.

    Returns:
        The diagnostics.
    """
    n = len(log_ratios)
    after = log_ratios.cumsum(1)
    whole = after[:, -1]
    by_position = effective_sample_size(after - log_ratios)
    share = tokens.double().sum(0) / tokens.sum()
    worst = float(effective_sample_size(whole))
    khat = pareto_khat(whole)
    bound = min(1 - 1 / math.log10(max(n, 2)), 0.7) if n > 10 else 0.0
    weights = whole.exp()
    mean, spread = (
        float(weights.mean()),
        float(weights.std(correction=min(1, n - 1)) / math.sqrt(n)),
    )
    verdict = _verdict(worst / n, khat, bound)
    if not abs(mean - 1) <= ADRIFT + 5 * spread:  # also where the weights overflow
        verdict = "resample"
    return Trust(float(by_position @ share), by_position, worst, mean, khat, bound, verdict)


def _verdict(ess_ratio: float, khat: float, bound: float) -> Verdict:
    if not ess_ratio >= 0.1 or (khat >= 1 and ess_ratio < HARMLESS):
        return "resample"
    if ess_ratio < 0.5 or (khat > bound and ess_ratio < HARMLESS):
        return "smooth"
    return "trust"


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(Σ W)² / Σ W² down the first axis.

    Args:
        log_weights: (n, ...) nats.

    Returns:
        (...) effective sample sizes between 1 and n.
    """
    weights = (log_weights - log_weights.amax(0)).exp()
    return weights.sum(0).square() / weights.square().sum(0)


def pareto_khat(log_weights: Tensor) -> float:
    """Shape k̂ of the generalised Pareto tail of the weights, by PSIS.

    Args:
        log_weights: (n,) nats.

    Returns:
        k̂, or NaN where the tail cannot be fitted (fewer than 25 weights, or equal ones).
    """
    values = log_weights.detach().cpu().numpy().astype(np.float64)
    tail = np.sort(values)[-max(5, int(min(len(values) / 5, 3 * math.sqrt(len(values))))) :]
    if len(values) < 25 or not np.isfinite(values).all() or np.ptp(tail) < 1e-12:
        return math.nan
    with np.errstate(all="ignore"):  # tied weights: the fit says so by NaN
        _, khat = array_stats.psislw(-values)
    return float(khat)
