"""Checks of the sampler: responses are draws of the scored policy, EOS included.

Seven tests need no log-probabilities of the sampler: two of identities and five of counts
(`draws`). A test fails beyond |z| = 4, or a p-value of 6.3e-5 where it has no z. At least one fails
in fewer than 1 of 2,200 sound batches. Printed p-values are Bonferroni's, for all tests together.
"""

import math
from dataclasses import replace

import torch

from isentrope.checks.checkpoint import Finding
from isentrope.checks.draws import Draws, Filter, count_draws
from isentrope.estimators.identities import (
    adjusted,
    identities_verdict,
    in_words,
    martingale_z,
    p_value,
    score_identity_z,
)
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.estimators.sampler_match import SamplerMatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, root_mean_square
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.policy.language_model import Policy
from isentrope.policy.ratio_test import P_LIMIT, ratio_test
from isentrope.policy.record_causes import Record, cause_of

SURPRISAL = "E[surprisal] = E[H]"
SCORE = "E[Σ ∂s] = 0"
EOS = "EOS as often as the policy's"
REPETITIONS = "repetitions as often as the policy's"
FILTERS = "no filter on the tail"
NOT_DRAWS = "The responses are not draws of the policy that is scored. "
_COMPARE = "Compare EOS, prompt template and weights."
HINTS = {
    SURPRISAL: (
        "They are likelier than the policy's own: a hidden top_k or top_p, or a lower "
        f"temperature in the sampler. {_COMPARE}",
        "They are less likely than the policy's own: a higher temperature in the sampler, or an "
        f"adapter that is not loaded in the scorer. {_COMPARE}",
    ),
    SCORE: (_COMPARE, _COMPARE),
    EOS: (
        "They end less often than the policy's own: EOS was masked, stripped or penalised, "
        "min_new_tokens was set, or short responses were filtered out.",
        "They end more often than the policy's own: EOS was favoured (length penalty, stop "
        "strings), or appended to responses that were cut.",
    ),
    REPETITIONS: (
        "They repeat fewer tokens than the policy's own: a repetition, presence or frequency "
        "penalty, or no_repeat_ngram_size. The generation_config.json of many models sets "
        "repetition_penalty, which generate and vLLM apply by themselves: set it to 1.",
        f"They repeat more tokens than the policy's own. {_COMPARE}",
    ),
}
"""What may be wrong where z is negative, and where it is positive."""

DERIVATIVES = "derivatives"
"""Name of the finding that says why there are none."""


def identity_findings(martingale: float, score: float, draws: Draws) -> list[Finding]:
    """Five findings of all seven tests (z of the two identities, and the counts)."""
    zs = {
        SURPRISAL: -martingale,
        SCORE: score,
        EOS: draws.eos.z if draws.eos is not None else math.nan,
        REPETITIONS: draws.repetitions.z,
    }
    tests = sum(map(math.isfinite, zs.values())) + len(draws.filters)
    findings: list[Finding] = []
    for name, z in zs.items():
        p = p_value(z)
        if math.isnan(p):
            findings.append(Finding(name, None, "the batch cannot show a difference"))
            continue
        advice = "" if identities_verdict(p) == "sound" else NOT_DRAWS + HINTS[name][z > 0]
        findings.append(Finding(name, not advice, f"z = {z:+.1f}: {in_words(p, tests)}", advice))
    return [*findings, _check_filters(draws.filters, tests)]


def _check_filters(filters: list[Filter], tests: int) -> Finding:
    within = [f"{f.name} {f.setting:.4g} (p = {adjusted(f.p_value, tests):.2g})" for f in filters]
    detail = f"no token drawn lies beyond {', '.join(within)}"
    likeliest = min(filters, key=lambda f: f.p_value)
    return Finding.judged(
        FILTERS,
        f"not sound: {detail}" if likeliest.p_value < P_LIMIT else None,
        f"{NOT_DRAWS}Their tail is missing, as with a hidden {likeliest.name} of about "
        f"{likeliest.setting:.4g}. Sample with top_k=0, top_p=1 and min_p=0: generate defaults to "
        "top_k=50, and a generation_config.json may set more.",
        f"sound: {detail}",
    )


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
    withheld = list[Finding]()
    score_z = math.nan
    try:
        sample = score_batch(policy, rollouts, direction=direction, order=1)
        score_z = score_identity_z(sample)
    except DerivativeError as error:  # ΔH(η) at finite η needs none
        sample = score_batch(policy, rollouts)
        withheld.append(Finding(DERIVATIVES, None, f"δH₁ and δH₂ are not given: {error}"))
    eos = _check_eos(policy, rollouts)
    agreement = _check_agreement(policy, rollouts, sample)
    draws = count_draws(policy, rollouts)
    findings = identity_findings(martingale_z(sample), score_z, draws)
    if agreement.passed:
        findings = [
            replace(f, advice=f"{f.advice} {RAW_LOGPROBS}") if f.passed is False else f
            for f in findings
        ]
    return [*withheld, eos, agreement, *findings]


def _check_eos(policy: Policy, rollouts: Rollouts) -> Finding:
    name = "EOS is part of the response"
    eos = policy.eos_token_ids
    if not eos:
        return Finding(name, None, "the policy has no EOS token")
    longest = rollouts.max_new_tokens or int(rollouts.lengths.max())
    lost = [
        i
        for i, ids in enumerate(rollouts.response_ids)
        if len(ids) < longest and int(ids[-1]) not in eos
    ]
    return Finding.judged(
        name,
        f"{len(lost)} of {len(rollouts)} responses stop before {longest} tokens "
        f"without EOS, the first is sequence {lost[0]}"
        if lost
        else None,
        "EOS was masked or stripped, often because pad = EOS: cut each response after its "
        "first EOS, and score that EOS.",
        f"every response shorter than {longest} tokens ends in EOS",
    )


def _check_agreement(policy: Policy, rollouts: Rollouts, sample: ScoredBatch) -> Finding:
    match = sample.match
    if match is None or match.difference is None:
        unknown = "the batch has no sampler log-probabilities"
        return Finding(AGREEMENT, None, unknown, KEEP_LOGPROBS)
    detail = f"log-probabilities differ by {match.difference:.1g} nats per token (root mean square)"
    if match.agrees:
        return Finding(AGREEMENT, True, detail)
    return Finding(AGREEMENT, False, detail, _diagnose(policy, rollouts, sample, match))


def _diagnose(policy: Policy, rollouts: Rollouts, sample: ScoredBatch, match: SamplerMatch) -> str:
    """The usual cause that explains the difference of sampler and scorer."""
    gap = -sample.log_ratios
    mask = sample.series[0].mask
    if match.sampler is not None and any(match.sampler.noise):
        return (
            "They differ a little around 0, as where the sampler has a shorter type, runs on "
            "another engine, or draws some tokens rarer: the importance weights undo that, and "
            "`measure` prints intervals, with a warning. If the sampler should be the scorer, load "
            "the same checkpoint in the same precision in both."
        )
    cause = cause_of(Record(policy, rollouts, sample.series[0], ratio_test(-gap[mask])))
    if cause is not None and cause.fault != "other":
        return f"{cause.words[0].upper()}{cause.words[1:]}."
    lengths = torch.tensor([len(p) for p in rollouts.prompt_ids])
    padded = lengths < lengths.max()
    inside, outside = (root_mean_square(gap[rows][mask[rows]]) for rows in (padded, ~padded))
    if outside < 0.1 * inside:  # NaN where no prompt is shorter
        return (
            "Only prompts shorter than the longest disagree: the sampler padded on the left "
            "without an attention mask (or position ids). Pass attention_mask to generate."
        )
    return (
        "The sampler ran other weights or another precision than the scorer: load the same "
        "checkpoint in both, or keep the sampler's log-probabilities in the batch and trust them "
        "only if it was a rounding difference."
    )
