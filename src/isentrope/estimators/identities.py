"""Is the instrument sound? Two identities of the sampler, and the rounding floor of ΔH (T13).

The identities hold only if the sampler drew from the policy that is scored.

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

The rounding floor is measured: along a short step the fourth difference

    S(2η) − 4 S(η) + 6 S(0) − 4 S(−η) + S(−2η)  =  η⁴ S'''' + …

holds neither slope nor curvature: the remainder is rounding noise of the evaluations only, of
variance 70σ² if one has variance σ². A log-weight, a difference of two evaluations, has √2 σ. The
same difference of F is the floor of ΔH itself.

It does not include the rounding of θ ± ηv: the two errors are nearly opposite, and cancel. With u
the unit roundoff of a parameter's type, the actual step differs from v by

    |round(θ + ηv) − θ − ηv| ≤ min(η|v|, u|θ|)          (and u η|v|, which is nothing)

in each parameter, and this is a bias of δH₁ that no spread reveals. So the smallest η is also one
at which ‖min(|v|, u|θ|/η)‖ is at most a hundredth of ‖v‖.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.functional import infinitesimal_jackknife
from isentrope.estimators.sample import ScoredBatch
from isentrope.models.precision import ROUNDING_BOUNDS
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.language_model import Policy
from isentrope.policy.record_causes import root_mean_square
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores

RELATIVE_STEP = 1e-6
"""‖ηv‖ / ‖θ‖ of the probing step. In float32 the parameters round much of it away, which does no
harm here: in both directions alike."""

DIFFERENCE = {2: 1, 1: -4, -1: -4, -2: 1}
"""Weights of S at multiples of η; that of S(0) is minus their sum."""

NOISE = math.sqrt(35)
"""Standard deviation of the difference, √70 σ, in those of a log-weight, √2 σ."""

CURVATURE_FALL = 0.1
"""At a tenth of the step curvature falls to 1e-4 of itself, and rounding to .3 at least."""

FINER = 4
"""Times that the probing step may be divided by ten: float64 then still resolves it."""

MAX_ROUNDING_LOSS = 0.01
"""Share of v that rounding the parameters may change."""


@dataclass(frozen=True)
class RoundingFloor:
    """Noise that rounding alone puts on the numbers.

    Attributes:
        log_weight: Root mean square noise of a sequence's log-weight, nats per sequence.
        entropy_change: Noise of ΔH, in the unit of the functional.
        smallest_eta: Smallest η at which |ηδH₁| is at least three floors, and rounding the
            parameters θ + ηv changes v by at most 1 % (to a factor of 2); infinite if δH₁ is 0,
            None where it is not known.
    """

    log_weight: float
    entropy_change: float
    smallest_eta: float | None


def rounding_floor(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    sample: ScoredBatch,
    first_order: float | None = None,
) -> RoundingFloor:
    """Measure the floor by four evaluations near θ, on the E-batch in use.

    In float64 a floor beyond its bound is measured again at a tenth of the step for as long as it
    falls as curvature does, and rounding does not.

    Args:
        policy: The policy.
        rollouts: The E-batch.
        direction: v.
        sample: The same E-batch scored at θ.
        first_order: δH₁ per unit η, where it is known.

    Returns:
        The floor.

    Raises:
        ValueError: If the direction is zero.
    """
    if norm(direction) == 0:
        raise ValueError(
            "The direction is zero: there is no step whose rounding could be measured."
        )
    eta = RELATIVE_STEP * (norm(policy.theta) or 1.0) / norm(direction)
    noise, change = _fourth_difference(policy, rollouts, direction, sample, eta)
    exact = policy.precision.runtime_dtype == "float64"
    for _ in range(FINER if exact else 0):
        if noise <= ROUNDING_BOUNDS[torch.float64].log_weight:
            break
        eta /= 10
        finer = _fourth_difference(policy, rollouts, direction, sample, eta)
        if finer[0] > CURVATURE_FALL * noise:
            break
        noise, change = finer
    smallest = first_order and max(
        3 * change / abs(first_order), _parameter_eta(policy.theta, direction)
    )
    return RoundingFloor(
        log_weight=noise,
        entropy_change=change,
        smallest_eta=math.inf if smallest == 0 else smallest,
    )


def _fourth_difference(
    policy: Policy, rollouts: Rollouts, direction: Vector, sample: ScoredBatch, eta: float
) -> tuple[float, float]:
    """Noise of a log-weight, and of ΔH, by the fourth difference at a step η."""
    scores = [(-sum(DIFFERENCE.values()), sample.series[0])]
    for k, weight in DIFFERENCE.items():
        moved = score(policy, rollouts, policy.parameters_along(direction, k * eta))
        scores.append((weight, moved))

    def difference(omega: Tensor) -> Tensor:
        values = [
            weight * sample.functional(omega, s.logprobs - sample.sampler_logprobs, s.entropies)
            for weight, s in scores
        ]
        return torch.stack(values).sum(0, keepdim=True)

    result = infinitesimal_jackknife(difference, sample.prompt_index)
    change = math.hypot(float(result.values[0]), float(result.standard_errors[0])) / NOISE
    gaps = torch.stack([weight * s.logprobs for weight, s in scores]).sum((0, 2))
    return root_mean_square(gaps) / NOISE, change


def _parameter_eta(theta: Vector, direction: Vector) -> float:
    """Smallest η at which ‖min(|v|, u|θ|/η)‖ ≤ 1 % of ‖v‖; 0 where θ is 0 in what v moves."""
    size = {n: v.double().abs() for n, v in direction.items()}
    most = MAX_ROUNDING_LOSS * norm(size)
    roundoff = {
        n: torch.finfo(p.dtype).eps / 2 * p.double().abs().to(size[n].device)
        for n, p in theta.items()
    }

    def lost(eta: float) -> float:
        return norm({n: v.minimum(roundoff[n] / eta) for n, v in size.items()})

    if norm({n: v * (roundoff[n] > 0) for n, v in size.items()}) <= most:
        return 0.0
    eta = norm(roundoff) / most  # enough, by far where v moves few parameters
    while lost(eta / 2) <= most:
        eta /= 2
    return eta


Z_LIMIT = 4.0
"""|z| up to which a batch is called sound."""
P_LIMIT = math.erfc(Z_LIMIT / math.sqrt(2))
"""The same as a two-sided p-value of a single test: 6.3e-5."""
UNUSUAL_P = 0.05
"""Adjusted p-value below which a sound batch is reported as unusual."""


def martingale_z(sample: ScoredBatch) -> float:
    """Sum of S + Σ_k H_k over its standard deviation: N(0, 1) for draws of the policy.

    Args:
        sample: A scored E-batch.

    Returns:
        z; NaN with a single sequence, or if the policy leaves the sampler no choice.
    """
    return _z(sample.series[0], sample.series[0].logprobs + sample.entropies)


def score_identity_z(sample: ScoredBatch) -> float:
    """Sum of Σ_k ∂_v s_k over its standard deviation: N(0, 1) for draws of the policy.

    Args:
        sample: An E-batch scored with derivatives along v.

    Returns:
        z; NaN with a single sequence, or if v moves no log-probability.
    """
    return _z(sample.series[1], sample.series[1].logprobs)


def _z(scores: Scores, terms: Tensor) -> float:
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
