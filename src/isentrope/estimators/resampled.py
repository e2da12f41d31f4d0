"""ΔH from fresh responses of both policies, coupled by common random numbers (T2d).

    ΔH(η) = F(samples of θ + ηv) − F(samples of θ)

Response i of both batches answers the same prompt from the same uniforms, so most responses are
equal at small η and the noise of the difference is small. It uses no importance weights: it is
the check where they fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isentrope.estimate import Estimate
from isentrope.estimators.functional import Functional, Functionals
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import Scores, score
from isentrope.rollouts import Rollouts
from isentrope.sampling.generate import sample_responses
from isentrope.vectors import Vector

ENOUGH = 50
"""Pairs that must differ, or half of all where that is less, for their spread to say anything."""


def resampled_entropy_change(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    etas: Sequence[float],
    *,
    max_new_tokens: int,
    seed: int,
    functional: Functional = "per_token",
    confidence: float = 0.95,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Estimate]:
    """Measure ΔH(η) without weights, on the prompts of an E-batch.

    Args:
        policy: The policy at θ; its parameters are moved for sampling and restored to the bit.
        rollouts: An E-batch: its prompts are used, and none of its responses.
        direction: v.
        etas: Learning rates.
        max_new_tokens: L_max.
        seed: Seed of the uniforms that both policies draw from.
        functional: "per_token" or "per_sequence".
        confidence: Nominal coverage of the interval.
        progress: Called with a few words before each evaluation.

    Returns:
        ΔH with its paired error, one a learning rate.

    Raises:
        ValueError: If the responses hold tokens that the policy did not draw.
    """
    if rollouts.response_mask is not None:
        raise ValueError(
            "Responses with tokens that the policy did not draw (response_mask) cannot be drawn "
            'afresh: use method "prefix", "sequence" or "doubly-robust".'
        )
    generator = torch.Generator().manual_seed(seed)
    shape = (len(rollouts), max_new_tokens)
    uniforms = torch.rand(shape, generator=generator, dtype=torch.float64)

    def fresh() -> Rollouts:
        responses, _ = sample_responses(policy, rollouts.prompt_ids, uniforms, max_new_tokens)
        return Rollouts(rollouts.prompt_ids, responses, rollouts.prompt_index)

    progress("θ")
    here = fresh()
    base = score(policy, here)
    estimates = []
    for eta in etas:
        progress(f"η = {eta:g}")
        with policy.shifted(direction, eta):
            there = fresh()
            moved = score(policy, there)
        pairs = zip(here.response_ids, there.response_ids, strict=True)
        differ = torch.tensor([not torch.equal(a, b) for a, b in pairs])
        estimates.append(
            coupled_change(base, moved, rollouts.prompt_index, differ, functional, confidence)
        )
    return estimates


def coupled_change(
    base: Scores,
    moved: Scores,
    prompt_index: Tensor,
    differ: Tensor,
    functional: Functional,
    confidence: float = 0.95,
) -> Estimate:
    """ΔH from two coupled batches of scores.

    Args:
        base: Scores of responses of θ under θ.
        moved: Scores of responses of θ + ηv under θ + ηv, sequence by sequence coupled.
        prompt_index: (n,) prompt draw of each pair.
        differ: (n,) bool, which pairs are of two different responses.
        functional: "per_token" or "per_sequence".
        confidence: Nominal coverage of the interval.

    Returns:
        ΔH with its paired error.
    """
    f = [Functionals(functional, "sequence", s.mask.double()) for s in (base, moved)]

    def difference(omega):
        values = [
            g(omega, torch.zeros_like(s.entropies), s.entropies)
            for g, s in zip(f, (base, moved), strict=True)
        ]
        return (values[1] - values[0])[None]

    result = infinitesimal_jackknife(difference, prompt_index)
    n_differ = int(differ.sum())
    few = n_differ < min(ENOUGH, len(differ) / 2)
    return Estimate.from_standard_error(
        float(result.values[0]),
        float(result.standard_errors[0]),
        result.n_units,
        unit=f[0].unit,
        method="resampled",
        confidence=confidence,
        warnings=[
            f"Only {n_differ} of {len(differ)} response pairs differ: too few for an "
            "interval; at so small a step use the importance-weighted methods."
        ]
        if few
        else (),
        trusted=not few,
    )
