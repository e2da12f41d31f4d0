"""The sampler: are these responses draws of the policy that is scored, EOS included?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isentrope.checks.finding import Finding
from isentrope.estimators.identities import martingale_z, score_identity_z
from isentrope.estimators.sample import draw_sample, sampler_logprobs
from isentrope.estimators.sampler_match import SamplerMatch, match_sampler, root_mean_square
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import Scores
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector

Z_LIMIT = 4.0
"""|z| beyond which an identity is broken: once in 16,000 sound batches."""


def check_sampler(policy: Policy, rollouts: Rollouts, direction: Vector) -> list[Finding]:
    """Check an E-batch against the policy that is said to have sampled it.

    Args:
        policy: The policy, as scored.
        rollouts: An unfiltered E-batch; a few hundred sequences make the z-tests sharp.
        direction: v of the score identity.

    Returns:
        One finding a check.
    """
    sample = draw_sample(
        policy,
        rollouts,
        functional="per_token",
        method="prefix",
        direction=direction,
        order=1,
    )
    return [
        _eos(policy, rollouts),
        _agreement(policy, rollouts, sample.series[0]),
        _identity("E[surprisal] = E[H]", -martingale_z(sample), sharper=True),
        _identity("E[Σ ∂s] = 0", score_identity_z(sample), sharper=False),
    ]


def _eos(policy: Policy, rollouts: Rollouts) -> Finding:
    name, eos = "EOS is part of the response", policy.eos_token_id
    if eos is None:
        return Finding(name, None, "the policy has no EOS token")
    longest = rollouts.max_new_tokens or int(rollouts.lengths.max())
    lost = [
        i
        for i, ids in enumerate(rollouts.response_ids)
        if len(ids) < longest and int(ids[-1]) != eos
    ]
    if lost:
        return Finding(
            name,
            False,
            f"{len(lost)} of {len(rollouts)} responses stop before {longest} tokens "
            f"without EOS, the first is sequence {lost[0]}",
            "EOS was masked or stripped, often because pad = EOS: cut each response after its "
            "first EOS, and score that EOS.",
        )
    return Finding(name, True, f"every response shorter than {longest} tokens ends in EOS")


def _agreement(policy: Policy, rollouts: Rollouts, scores: Scores) -> Finding:
    name = "sampler = scorer"
    if rollouts.sampler_logprobs is None:
        return Finding(name, None, "the batch has no sampler log-probabilities")
    match = match_sampler(policy, rollouts, scores)  # as `measure` does
    detail = f"log-probabilities differ by {match.difference:.1g} nats a token (root mean square)"
    if match.agrees:
        return Finding(name, True, detail)
    gap = sampler_logprobs(rollouts, scores) - scores.logprobs
    return Finding(name, False, detail, _diagnosis(policy, rollouts, match, gap, scores.mask))


def _diagnosis(
    policy: Policy, rollouts: Rollouts, match: SamplerMatch, gap: Tensor, mask: Tensor
) -> str:
    """Which of the usual causes explains the difference of sampler and scorer?"""
    if match.temperature is not None:
        return (
            f"The sampler's log-probabilities are those of temperature {match.temperature:.3g}, "
            f"the scorer is at {policy.temperature:g}: score at the temperature of the sampler."
        )
    if float(gap[mask].min()) > -1e-6:
        return (
            "The sampler's log-probabilities are never below the scorer's: a filter (top_k, top_p "
            "or min_p) renormalised them. Sample with top_k=0 and top_p=1; generate defaults to "
            "top_k=50."
        )
    lengths = torch.tensor([len(p) for p in rollouts.prompt_ids])
    padded = lengths < lengths.max()
    if bool(padded.any()) and bool((~padded).any()):
        inside, outside = (root_mean_square(gap[rows], mask[rows]) for rows in (padded, ~padded))
        if outside < 0.1 * inside:
            return (
                "Only prompts shorter than the longest disagree: the sampler padded on the left "
                "without an attention mask (or position ids). Pass attention_mask to generate."
            )
    return (
        "The sampler ran other weights or another precision than the scorer: load the same "
        "checkpoint in both, or keep the sampler's log-probabilities in the batch and trust them "
        "only if it was a rounding difference."
    )


def _identity(name: str, z: float, *, sharper: bool) -> Finding:
    if not math.isfinite(z):
        return Finding(name, None, "it takes two prompt draws or more that differ")
    detail = f"z = {z:+.1f}"
    if abs(z) <= Z_LIMIT:
        return Finding(name, True, detail)
    hint = "The responses are not draws of the policy that is scored. "
    if sharper and z < 0:
        hint += "They are likelier than the policy's own: a hidden top_k or top_p, or a lower "
        hint += "temperature in the sampler. "
    elif sharper:
        hint += "They are less likely than the policy's own: a higher temperature in the sampler, "
        hint += "or an adapter that is not loaded in the scorer. "
    hint += "Also compare EOS handling, prompt template and weights."
    return Finding(name, False, detail, hint)
