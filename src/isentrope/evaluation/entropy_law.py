"""The exchange of entropy for reward along a run (T10; Cui et al. 2025, arXiv 2505.22617).

    R = −a exp(h) + b          h entropy per token in nats, R mean reward

a is the price of reward in entropy, b − a the reward at zero entropy, h = 0. The law is linear in
x = exp(h), fitted by least squares over the steps of one run. Neighbouring steps are correlated, so
errors are those of a jackknife that deletes one of five contiguous blocks, with t intervals of four
degrees of freedom. They are too short where the noise is correlated over a block, so the errors are
multiplied by

    √(1 + 5 (τ − 1)/T),     τ = (1 + ρ₊)/(1 − ρ₊)

with ρ₊ an upper bound of the autocorrelation: that of the residuals, its bias (1 + 4ρ)/T added, and
two of its standard errors. A threshold on ρ itself selects the runs in which it came out low, whose
intervals cover least. Runs of fewer than 40 steps have no interval.

A run may not follow the law at all. The term c of

    R = b − a x + c (x − x̄)²

has such an error too, with ρ₊ of its own residuals; where it is not zero the law does not fit, and
a warning says so. Coverage in simulated runs, and the share of runs with an interval, are in
docs/results/intervals.md.

The law describes a run; it does not say that entropy causes reward. A run whose entropy hardly
changed does not determine it, and has wide intervals.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isentrope.nouns.estimate import Estimate
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.one_line import one_line

BLOCKS = 5
MIN_STEPS = 10
"""Fewest steps: two per block."""

MIN_STEPS_FOR_INTERVAL = 40
"""Steps from which on there are intervals: fewer cannot separate autocorrelation from a trend."""

LARGEST_AUTOCORRELATION = 0.97
"""Upper limit of ρ₊: a run whose residuals are more alike than this has no noise to speak of."""

LARGEST_ENTROPY = 100.0
"""Nats per token; that of a vocabulary of e¹⁰⁰ entries."""

_METHOD = "least squares, delete-a-block jackknife"
_TOO_SHORT = (
    f"No interval from {{steps}} steps: fewer than {MIN_STEPS_FOR_INTERVAL} cannot separate "
    "correlated noise from a trend."
)
_MISFIT = (
    "The law does not describe this run: a quadratic term is distinguishable from zero, so a and "
    "the reward at h = 0 depend on which steps are fitted."
)


@dataclass(frozen=True)
class EntropyLaw:
    """R = −a exp(h) + b.

    Attributes:
        a: Reward per unit of exp(h).
        b: Intercept.
        ceiling: b − a, the reward at h = 0.
        r_squared: Share of the variance of R that the law explains.
        residual: Root mean square of the residuals, in units of R.
        autocorrelation: ρ, of the residuals of neighbouring steps.
        curvature: c, which is zero if the law holds.
        warnings: Why intervals are omitted, and whether the law does not fit.
    """

    a: Estimate
    b: Estimate
    ceiling: Estimate
    r_squared: float
    residual: float
    autocorrelation: float
    curvature: Estimate
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        law = f"R = b − a exp(h), R² {self.r_squared:.2g}"
        return one_line(self, f"{law}, a {self.a}", f"b {self.b}")

    @property
    def misfits(self) -> bool:
        """Whether a quadratic term is distinguishable from zero."""
        return self.curvature.ci_low > 0 or self.curvature.ci_high < 0

    def __call__(self, entropy: float) -> float:
        """R that the law gives at an entropy per token in nats."""
        return float(self.b.value - self.a.value * np.exp(entropy))


@refuse_other_types
def fit_entropy_law(
    entropy: Sequence[float], reward: Sequence[float], *, confidence: float = 0.95
) -> EntropyLaw:
    """Fit the law to the steps of one run, in their order.

    Args:
        entropy: h of each step, nats per token.
        reward: R of each step.
        confidence: Nominal coverage.

    Returns:
        The fitted law.

    Raises:
        ValueError: If there are fewer than ten steps, sizes differ, a number is not finite, or
            entropy does not change.
    """
    h = np.asarray(entropy, dtype=float)
    r = np.asarray(reward, dtype=float)
    if h.shape != r.shape or h.ndim != 1 or len(h) < MIN_STEPS:
        raise ValueError(
            f"The law is fitted to one entropy and one reward per step, {MIN_STEPS} steps or more; "
            f"got shapes {h.shape} and {r.shape}."
        )
    if not (np.isfinite(h).all() and np.isfinite(r).all() and h.max() <= LARGEST_ENTROPY):
        raise ValueError(
            "The law needs finite rewards, and finite entropies per token in nats, of which no "
            f"vocabulary has more than {LARGEST_ENTROPY:g}: drop the steps without one."
        )
    block = np.arange(len(h)) * BLOCKS // len(h)
    x = np.exp(h)
    if not all(np.ptp(x[block != g]) > 0 for g in range(BLOCKS)):
        raise ValueError("The entropy is the same at every step, so there is no law to fit.")
    slope, intercept, _ = _fit_line(x, r)
    residuals = r - (intercept - slope * x)
    exact = float(np.abs(residuals).max()) <= 1e-9 * float(np.ptp(r))  # what is left is rounding
    if exact:
        residuals = np.zeros_like(residuals)
    options: dict[str, Any] = {"block": block, "confidence": confidence}
    centred = x - x.mean()
    # a run that bends leaves residuals of the line that are alike for that reason
    of_quadratic = residuals if exact else r - _powers(centred) @ _fit_quadratic(centred, r)
    *_, c = _estimate_coefficients(_fit_quadratic, centred, r, of_quadratic, not exact, **options)
    few_steps = len(h) < MIN_STEPS_FOR_INTERVAL
    warnings = (_TOO_SHORT.format(steps=len(h)),) if few_steps else ()
    warnings += (_MISFIT,) if c.ci_low > 0 or c.ci_high < 0 else ()
    a, b, ceiling = (
        replace(coefficient, warnings=warnings)
        for coefficient in _estimate_coefficients(
            _fit_line, x, r, residuals, not few_steps, **options
        )
    )
    mean_square = float((residuals**2).mean())
    return EntropyLaw(
        a,
        b,
        ceiling,
        r_squared=1 - mean_square / float(r.var()) if r.var() > 0 else 0.0,
        residual=math.sqrt(mean_square),
        autocorrelation=_autocorrelation(residuals),
        curvature=c,
        warnings=warnings,
    )


def inflation_of_errors(rho: float, steps: int) -> float:
    """The factor of the errors for noise that is correlated over blocks.

    Args:
        rho: Lag-1 autocorrelation of the residuals.
        steps: T.

    Returns:
        1 or more.
    """
    bias = (1 + 4 * max(rho, 0.0)) / steps
    upper = rho + bias + 2 * float(np.sqrt(max(1 - rho**2, 0.0) / steps))
    upper = min(max(upper, 0.0), LARGEST_AUTOCORRELATION)
    tau = (1 + upper) / (1 - upper)
    return float(np.sqrt(1 + BLOCKS * (tau - 1) / steps))


def _estimate_coefficients(
    fit: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    r: np.ndarray,
    residuals: np.ndarray,
    trusted: bool,
    *,
    block: np.ndarray,
    confidence: float,
) -> list[Estimate]:
    """Coefficients with the delete-a-block jackknife, inflated as the residuals say."""
    replicates = np.array([fit(x[block != g], r[block != g]) for g in range(BLOCKS)])
    errors = np.sqrt((BLOCKS - 1) / BLOCKS * ((replicates - replicates.mean(0)) ** 2).sum(0))
    errors *= inflation_of_errors(_autocorrelation(residuals), len(r))
    return [
        Estimate.from_standard_error(
            float(value),
            float(error),
            len(r),
            unit="reward",
            method=_METHOD,
            degrees_of_freedom=BLOCKS - 1,
            confidence=confidence,
            trusted=trusted,
        )
        for value, error in zip(fit(x, r), errors, strict=True)
    ]


def _fit_line(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """(a, b, b − a) by least squares."""
    dx = x - x.mean()
    a = -(dx @ r) / (dx @ dx)
    b = r.mean() + a * x.mean()
    return np.array([a, b, b - a])


def _fit_quadratic(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Coefficients of 1, x and x² by least squares; the last is NaN where x has two values only."""
    coefficients, _, rank, _ = np.linalg.lstsq(_powers(x), r, rcond=1e-10)
    return coefficients if rank == 3 else np.append(coefficients[:2], np.nan)


def _powers(x: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), x, x**2], 1)


def _autocorrelation(residuals: np.ndarray) -> float:
    """Lag-1 autocorrelation; 0 where the fit is exact."""
    square = float(residuals @ residuals)
    return float(residuals[1:] @ residuals[:-1]) / square if square > 0 else 0.0
