"""Can responses be draws of the distribution whose log-probabilities were recorded with them?

Given its prefix, a token that π_s drew has

    E_s[π/π_s] = Σ_a π(a) = 1

for any policy π and any π_s over the whole vocabulary, however stale. The terms x = π/π_s − 1 of
all tokens are therefore martingale differences: those of one response or of one prompt depend on
each other and are uncorrelated, so their sum has the variance Σ E[x²] whatever the groups.

Ratios have long right tails, and Σ x over its estimated deviation is not normal: where a rare token
has become likely, a sample that missed it has a small spread and a mean below 1. Both tests are
therefore bets, whose error holds for every tail (Waudby-Smith and Ramdas, Estimating means of
bounded random variables by betting, 2023): with 0 ≤ λ ≤ 1 the product Π (1 + λ x) has mean 1, so it
exceeds 1/p with a probability of at most p (Ville). A mean above 1 is bet on with 2⁰ … 2⁻¹⁰ for λ,
and the mean of these products is the evidence. One below 1 needs a largest ratio R, and is bet on
with λ/(R − 1): `UNSEEN` or twice the largest that was seen, if that is more.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BETS = 11
"""Values of λ, each half of the one before."""
UNSEEN = 20.0
"""A ratio that may exist although no token of the batch has it."""
Z_LIMIT = 4.0
"""|z| up to which a batch, or a record, is called sound."""
P_LIMIT = math.erfc(Z_LIMIT / math.sqrt(2))
"""The same as a two-sided p-value of a single test: 6.3e-5, that a sound one fails."""
RECORD_ROUNDING = 0.002
"""Deviation of the mean that rounding of the record makes."""
ALWAYS_MATTERS = 0.05
"""Deviation of the mean that matters whatever the ratios are."""
MATTERS_OF_MOVE = 0.1
"""And its share of the mean square of log π/π_s, which is how far the record says π moved."""


@dataclass(frozen=True)
class RatioTest:
    """The mean of π/π_s over tokens, and whether a sound record can have it.

    Attributes:
        mean: Mean of π/π_s.
        standard_error: Of the mean, by its martingale.
        p_value: Bound of the probability that a sound record is as far out, from both bets.
        fails: Whether it is below `P_LIMIT`, and the deviation can matter.
    """

    mean: float
    standard_error: float
    p_value: float
    fails: bool

    @property
    def z(self) -> float:
        """Deviation of the mean from 1 in standard errors; for ratios without long tails."""
        deviation = self.mean - 1
        return deviation / self.standard_error if self.standard_error else math.inf * deviation


def ratio_test(log_ratios: Tensor) -> RatioTest:
    """Test that the mean of π/π_s is 1.

    Args:
        log_ratios: (m,) finite log π − log π_s of all tokens, nats.

    Returns:
        The mean, and what it says.
    """
    x = log_ratios.expm1()
    bets = 0.5 ** torch.arange(BETS, dtype=torch.float64)
    largest = max(UNSEEN, 2 * (float(x.max()) + 1))
    evidence = max(_bet(x, bets), _bet(-x, bets / (largest - 1)))
    p_value = min(1.0, 2 * math.exp(-max(evidence, 0.0)))
    limit = MATTERS_OF_MOVE * float(log_ratios.square().mean())
    mean = float(x.mean())
    error = float(x.square().sum().sqrt()) / len(x)
    matters = abs(mean) >= max(RECORD_ROUNDING, min(ALWAYS_MATTERS, limit))
    return RatioTest(1 + mean, error, p_value, p_value < P_LIMIT and matters)


def _bet(x: Tensor, bets: Tensor) -> float:
    """The evidence: log of the mean over λ of Π (1 + λ x)."""
    logs = torch.stack([(bet * x).log1p().sum() for bet in bets])
    return float(logs.logsumexp(0)) - math.log(len(bets))
