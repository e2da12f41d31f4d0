"""Tests that responses are draws of the policy, without log-probabilities of the sampler.

Seven tests, two of identities and five of counts (`draws`). A test fails beyond |z| = 4, or a
p-value of 6.3e-5 where it has no z. At least one fails in fewer than 1 of 2,200 sound batches.
Printed p-values are Bonferroni's, for all tests together.
"""

from __future__ import annotations

import math

from isentrope.checks.draws import Draws, Filter
from isentrope.checks.finding import Finding
from isentrope.estimators.identities import P_LIMIT, adjusted, identities_verdict, in_words, p_value

SURPRISAL, SCORE, EOS = "E[surprisal] = E[H]", "E[Σ ∂s] = 0", "EOS as often as the policy's"
REPETITIONS, FILTERS = "repetitions as often as the policy's", "no filter on the tail"
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


def identity_findings(martingale: float, score: float, draws: Draws) -> list[Finding]:
    """Five findings of all seven tests (z of the two identities, and the counts)."""
    zs = {
        SURPRISAL: -martingale,
        SCORE: score,
        EOS: draws.eos.z if draws.eos is not None else math.nan,
        REPETITIONS: draws.repetitions.z,
    }
    tests = sum(map(math.isfinite, zs.values())) + len(draws.filters)
    return [
        *(_finding(name, z, tests) for name, z in zs.items()),
        _filters(draws.filters, tests),
    ]


def untested() -> list[Finding]:
    """The same findings for a batch of a single sequence."""
    names = (SURPRISAL, SCORE, EOS, REPETITIONS, FILTERS)
    return [Finding(name, None, "it needs at least two sequences") for name in names]


def _finding(name: str, z: float, tests: int) -> Finding:
    if not math.isfinite(z):
        return Finding(name, None, "the batch cannot show a difference")
    p = p_value(z)
    detail = f"z = {z:+.1f}: {in_words(p, tests)}"
    passed = identities_verdict(p) == "sound"
    return Finding(name, passed, detail, "" if passed else NOT_DRAWS + HINTS[name][z > 0])


def _filters(filters: tuple[Filter, ...], tests: int) -> Finding:
    within = [f"{f.name} {f.setting:.4g} (p = {adjusted(f.p_value, tests):.2g})" for f in filters]
    detail = f"no token drawn lies beyond {', '.join(within)}"
    likeliest = min(filters, key=lambda f: f.p_value)
    if likeliest.p_value >= P_LIMIT:
        return Finding(FILTERS, True, f"sound: {detail}")
    return Finding(
        FILTERS,
        False,
        f"not sound: {detail}",
        f"{NOT_DRAWS}Their tail is missing, as with a hidden {likeliest.name} of about "
        f"{likeliest.setting:.4g}. Sample with top_k=0, top_p=1 and min_p=0: generate defaults to "
        "top_k=50, and a generation_config.json may set more.",
    )
