"""Checks of the sampler: responses are draws of the scored policy, EOS included."""

from __future__ import annotations

from dataclasses import replace

import torch

from isentrope.checks.draws import count_draws
from isentrope.checks.finding import Finding
from isentrope.checks.identities import identity_findings, untested
from isentrope.estimators.identities import (
    identities_verdict,
    martingale_z,
    p_value,
    score_identity_z,
    studentised,
)
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.estimators.sampler_match import SamplerMatch, at_temperature, root_mean_square
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score_with_variances

AGREEMENT = "sampler = scorer"
KEEP_LOGPROBS = (
    "Keep the log-probabilities that the tokens were drawn with, after temperature and filters: "
    "they reveal every fault. Raw ones, which many engines return, hide temperature and "
    "filters (vLLM: logprobs_mode=processed_logprobs)."
)
RAW_LOGPROBS = (
    "The log-probabilities in the batch agree with the scorer nevertheless: they are raw ones, "
    "from before the sampler's filters and penalties."
)


def check_sampler(policy: Policy, rollouts: Rollouts, direction: Vector) -> list[Finding]:
    """Check that a policy sampled an E-batch.

    Args:
        policy: The policy, as scored.
        rollouts: An unfiltered E-batch; the tests need a few hundred sequences.
        direction: v of the score identity.

    Returns:
        One finding per check.
    """
    sample = score_batch(policy, rollouts, direction=direction, order=1)
    eos, agreement = _eos(policy, rollouts), _agreement(policy, rollouts, sample)
    if len(rollouts) < 2:
        return [eos, agreement, *untested()]
    draws = count_draws(policy, rollouts)
    findings = identity_findings(martingale_z(sample), score_identity_z(sample), draws)
    if agreement.passed is None:
        agreement = replace(agreement, advice=KEEP_LOGPROBS)
    elif agreement.passed:
        findings = [
            replace(f, advice=f"{f.advice} {RAW_LOGPROBS}") if f.passed is False else f
            for f in findings
        ]
    return [eos, agreement, *findings]


def _eos(policy: Policy, rollouts: Rollouts) -> Finding:
    name, eos = "EOS is part of the response", policy.eos_token_ids
    if not eos:
        return Finding(name, None, "the policy has no EOS token")
    longest = rollouts.max_new_tokens or int(rollouts.lengths.max())
    lost = [
        i
        for i, ids in enumerate(rollouts.response_ids)
        if len(ids) < longest and int(ids[-1]) not in eos
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


def _agreement(policy: Policy, rollouts: Rollouts, sample: ScoredBatch) -> Finding:
    match = sample.match
    if match is None or match.difference is None:
        return Finding(AGREEMENT, None, "the batch has no sampler log-probabilities")
    detail = f"log-probabilities differ by {match.difference:.1g} nats per token (root mean square)"
    if match.agrees:
        return Finding(AGREEMENT, True, detail)
    return Finding(AGREEMENT, False, detail, _diagnosis(policy, rollouts, sample, match))


def _diagnosis(policy: Policy, rollouts: Rollouts, sample: ScoredBatch, match: SamplerMatch) -> str:
    """The usual cause that explains the difference of sampler and scorer."""
    gap, mask = -sample.log_ratios, sample.series[0].mask
    if match.sampler is not None and any(match.sampler.noise):
        return (
            "They differ a little around 0, as where the sampler has a shorter type, runs on "
            "another engine, or draws some tokens rarer: the importance weights undo that, and "
            "`measure` prints intervals, with a warning. If the sampler should be the scorer, load "
            "the same checkpoint in the same precision in both."
        )
    if (temperature := match.temperature) is not None:
        if _fits(policy, rollouts, policy.temperature) > _fits(policy, rollouts, temperature):
            return (
                f"The sampler's log-probabilities are those of temperature {temperature:.3g}, but "
                f"the responses are not: they fit the scorer's {policy.temperature:g}. "
                f"{KEEP_LOGPROBS}"
            )
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
        inside, outside = (root_mean_square(gap[rows][mask[rows]]) for rows in (padded, ~padded))
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


def _fits(policy: Policy, rollouts: Rollouts, temperature: float) -> bool:
    """Whether the responses can be draws of the policy at another temperature."""
    with at_temperature(policy, temperature):
        scores = score_with_variances(policy, rollouts)
    assert scores.variances is not None
    z = studentised(scores.logprobs + scores.entropies, scores.variances)
    return identities_verdict(p_value(z)) == "sound"
