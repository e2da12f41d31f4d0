"""ΔH from fresh responses of both policies, coupled by common random numbers (T2d).

    ΔH(η) = F(samples of θ + ηv) − F(samples of θ)

Response i of both batches answers the same prompt from the same uniforms, so most responses are
equal at small η and the noise of the difference is small. It uses no importance weights: it is
the check where they fail.

Where few of n pairs differ, their own spread does not describe the pairs that might have differed.
The variance is then bounded, from the largest rate q of different pairs that their number K allows
(Clopper and Pearson), and the spread that they have or would have if they were independent:

    SE² = Σ_{equal} φ_i² + q · max( n/K Σ_{different} φ_i², Σ_i φ_i(θ)² + Σ_i φ_i(θ + ηv)² )

φ_i are the influences of pair i on the difference, and on F at θ and at θ + ηv (T11).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from scipy.special import betaincinv
from torch import Tensor

from isentrope.estimators.functional import UNITS, Functionals
from isentrope.estimators.jackknife import Units, infinitesimal_jackknife
from isentrope.estimators.options import EstimatorOptions
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import Scores
from isentrope.sampling.draw import sample_responses
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.progress import ProgressCallback, silent

ENOUGH_PAIRS = 50
"""Pairs that must differ, or half of all where that is less, for their spread to represent all."""


@refuse_other_types
def resampled_entropy_change(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    etas: Sequence[float],
    *,
    max_new_tokens: int,
    seed: int,
    estimator: EstimatorOptions = EstimatorOptions(),
    progress: ProgressCallback = silent,
) -> list[Estimate]:
    """Measure ΔH(η) without weights, on the prompts of an E-batch.

    Args:
        policy: The policy at θ; its parameters are moved for sampling and restored exactly.
        rollouts: An E-batch: its prompts are used, and none of its responses.
        direction: v.
        etas: Learning rates.
        max_new_tokens: L_max.
        seed: Seed of the uniforms that both policies draw from.
        estimator: Which entropy, and the coverage of the interval; its method is not used.
        progress: Called before each evaluation.

    Returns:
        ΔH with its paired error, one per learning rate.

    Raises:
        ValueError: If the responses hold tokens that the policy did not draw.
    """
    if rollouts.response_mask is not None:
        raise ValueError(
            "Responses with tokens that the policy did not draw (response_mask) cannot be drawn "
            'afresh: use method "prefix", "sequence" or "doubly-robust".'
        )
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(rollouts), max_new_tokens, generator=generator, dtype=torch.float64)

    def draw() -> Rollouts:
        drawn = sample_responses(policy, rollouts.prompt_ids, uniforms, max_new_tokens)
        return Rollouts(rollouts.prompt_ids, drawn.response_ids, rollouts.prompt_index)

    progress(0, len(etas) + 1, "θ")
    at_theta = draw()
    base = score(policy, at_theta)
    estimates: list[Estimate] = []
    for done, eta in enumerate(etas, start=1):
        progress(done, len(etas) + 1, f"η = {eta:g}")
        with policy.shifted(direction, eta):
            after_step = draw()
            moved_scores = score(policy, after_step)
        pairs = zip(at_theta.response_ids, after_step.response_ids, strict=True)
        differ = torch.tensor([not torch.equal(a, b) for a, b in pairs])
        estimates.append(
            coupled_change(base, moved_scores, rollouts.prompt_index, differ, estimator)
        )
    return estimates


def coupled_change(
    base: Scores,
    moved_scores: Scores,
    prompt_index: Tensor,
    differ: Tensor,
    estimator: EstimatorOptions = EstimatorOptions(),
) -> Estimate:
    """ΔH from two coupled batches of scores.

    Args:
        base: Scores of responses of θ under θ.
        moved_scores: Scores of responses of θ + ηv under θ + ηv, sequence by sequence coupled.
        prompt_index: (n,) prompt draw of each pair.
        differ: (n,) bool, which pairs are of two different responses.
        estimator: Which entropy, and the coverage of the interval; its method is not used.

    Returns:
        ΔH with its paired error, or with a bound on it where few pairs differ.
    """

    def values(omega: Tensor) -> Tensor:
        at_theta, after_step = (
            Functionals(estimator.functional, "sequence", s.mask.double())(
                omega, torch.zeros_like(s.entropies), s.entropies
            )
            for s in (base, moved_scores)
        )
        return torch.stack((after_step - at_theta, at_theta, after_step))

    result = infinitesimal_jackknife(values, prompt_index)
    units = Units.of(prompt_index)
    different = units.sums(differ) > 0  # (P,)
    n = units.count
    k = int(different.sum())
    confidence = estimator.confidence
    options: dict[str, Any] = {
        "method": "resampled",
        "confidence": confidence,
        "unit": UNITS[estimator.functional],
    }
    estimate = result.estimate(0, **options)
    if k >= min(ENOUGH_PAIRS, n / 2) or n < 2:
        return estimate
    # with the rate of different pairs at its upper limit
    rate = float(betaincinv(k + 1, n - k, 0.5 + confidence / 2))
    change, at_theta, after_step = (n / (n - 1) * result.influences.square()).unbind()
    difference = float(change[different].sum()) * n / max(k, 1)
    spread = max(difference, float(at_theta.sum() + after_step.sum()))
    se = (float(change[~different].sum()) + rate * spread) ** 0.5
    bound = Estimate.from_standard_error(estimate.value, se, n, **options)
    warning = (
        f"Only {k} of {n} response pairs differ: the error is a bound, from "
        "the largest rate of different pairs that this number allows. At so small a step the "
        "importance-weighted methods are sharper."
    )
    longer = max(bound, estimate, key=lambda e: e.ci_high - e.ci_low)  # the second may be NaN
    return replace(longer, warnings=(warning,))
