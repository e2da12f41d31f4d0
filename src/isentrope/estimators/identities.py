"""Two identities of the sampler, which test whether the policy drew the responses (T13).

They hold only if the sampler drew from the policy that is scored.

    E[ S + Σ_k H_k ] = 0         (martingale: surprisal and exact entropy have the same mean)
    E[ Σ_k ∂_v s_k ] = 0         (score identity, along any v)

Each is a z-test on the E-batch. A hidden top-k, another temperature, a masked EOS or a
shifted prompt all break them.

Given its prefix, every term X_ik has mean zero and a variance V_ik that follows from the softmax
(`policy.token_statistics`), so the terms form one martingale over tokens and sequences, for any
groups:

    z = Σ X_ik / √( Σ X_ik²/3 + 2 Σ V_ik/3 )

The sample's own variance would fail where few tokens hold the entropy: a batch that missed the rare
tokens has a small one, and a large z. V alone fails the other way, where one rare token was drawn.
With one third and two thirds no few tokens make a large z: e^{x − x²/6} ≤ 1 + x + x²/3, hence
exp(λ Σ X − λ²/2 · denominator²) has mean 1 or less for every λ and n (Delyon, Exponential
inequalities for sums of weakly dependent variables, 2009).
"""

import math

from torch import Tensor

from isentrope.estimators.sample import ScoredBatch
from isentrope.policy.ratio_test import P_LIMIT
from isentrope.policy.token_statistics import Scores

UNUSUAL_P = 0.05
"""Adjusted p-value below which a sound batch is reported as unusual."""


def martingale_z(sample: ScoredBatch) -> float:
    """Sum of S + Σ_k H_k over its standard deviation: N(0, 1) for draws of the policy.

    Args:
        sample: A scored E-batch.

    Returns:
        z; NaN with a single sequence, or if the policy leaves the sampler no choice.
    """
    return _studentise(sample.series[0], sample.series[0].logprobs + sample.entropies)


def score_identity_z(sample: ScoredBatch) -> float:
    """Sum of Σ_k ∂_v s_k over its standard deviation: N(0, 1) for draws of the policy.

    Args:
        sample: An E-batch scored with derivatives along v.

    Returns:
        z; NaN with a single sequence, or if v moves no log-probability.
    """
    return _studentise(sample.series[1], sample.series[1].logprobs)


def _studentise(scores: Scores, terms: Tensor) -> float:
    """Z of terms that have the variances of these scores; NaN with a single sequence."""
    assert scores.variances is not None  # `score_batch` computes them
    return studentised(terms, scores.variances) if len(terms) > 1 else math.nan


def studentised(terms: Tensor, variances: Tensor) -> float:
    """A sum of martingale differences over its standard deviation.

    Args:
        terms: Any shape: X, each with mean zero given what was drawn before.
        variances: The same shape: V, the variance of each given what was drawn before.

    Returns:
        z; NaN if every term and variance is zero.
    """
    square = float(terms.square().sum()) / 3 + 2 * float(variances.sum()) / 3
    return float(terms.sum()) / math.sqrt(square) if square > 0 else math.nan


def p_value(z: float | None) -> float:
    """Two-sided p-value of a standard normal z; NaN if there is none."""
    return math.nan if z is None else math.erfc(abs(z) / math.sqrt(2))


def adjusted(p: float, tests: int) -> float:
    """Bonferroni's p-value: the chance of one as small in any of `tests` tests, at most."""
    return min(1.0, tests * p)


def identities_verdict(p: float) -> str:
    """From the p-value of one test: "sound", "not sound" or "not tested"."""
    if math.isnan(p):
        return "not tested"
    return "sound" if p >= P_LIMIT else "not sound"


def in_words(p: float, tests: int) -> str:
    """The verdict with its p-value.

    Args:
        p: p-value of one test.
        tests: Number of tests that were made together.

    Returns:
        Like "sound, p = 0.4". The p-value is Bonferroni's, for all tests together.
    """
    if math.isnan(p):
        return "not tested"
    together = adjusted(p, tests)
    if p >= P_LIMIT and together < UNUSUAL_P:
        return f"sound, although only 1 in {1 / together:.0f} sound batches lies as far out"
    return f"{identities_verdict(p)}, p = {together:.2g}"
