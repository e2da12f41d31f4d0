"""The entropy of a policy, per sequence or per token (T1).

    ℋ = E[ Σ_k H_k ]  (Rao-Blackwell)  =  −E[S]  (surprisal, the simple reference),     h = ℋ/N

Both are unbiased; they agree only if the sampler drew from the policy that is scored, which is
therefore a test of the setup (`isentrope check`). Where the sampler's log-probabilities are
kept, each response has the weight policy over sampler (T2a), which is 1 for the policy's own. A
sampler at another temperature is judged by its integrated effective sample size; one that differs
for an unknown reason leaves no interval (`sampler_match`).
"""

from __future__ import annotations

from isentrope.estimators.functional import Functional
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import score_batch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy


def entropy(
    policy: Policy, rollouts: Rollouts, *, functional: Functional = "per_token"
) -> Estimate:
    """Rao-Blackwell entropy: exact conditional entropies along sampled prefixes.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        functional: "per_token" (h) or "per_sequence" (ℋ).

    Returns:
        h in nats per token or ℋ in nats per sequence.
    """
    return _mean(policy, rollouts, functional, "rao-blackwell")


def surprisal_entropy(
    policy: Policy, rollouts: Rollouts, *, functional: Functional = "per_token"
) -> Estimate:
    """Entropy as mean surprisal −S: higher variance, kept as reference.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        functional: "per_token" or "per_sequence".

    Returns:
        h in nats per token or ℋ in nats per sequence.
    """
    return _mean(policy, rollouts, functional, "surprisal")


def _mean(policy: Policy, rollouts: Rollouts, functional: Functional, method: str) -> Estimate:
    sample = score_batch(policy, rollouts, functional=functional, method="sequence")
    terms = sample.entropies if method == "rao-blackwell" else -sample.series[0].logprobs
    f, ratios, trust = sample.functional, sample.log_ratios, sample.trust
    result = infinitesimal_jackknife(lambda w: f(w, ratios, terms)[None], rollouts.prompt_index)
    return result.estimate(0, unit=f.unit, **trust.options("sequence") | {"method": method})
