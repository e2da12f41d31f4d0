"""The entropy of a policy, per sequence or per token (T1).

    ℋ = E[ Σ_k H_k ]  (Rao-Blackwell)  =  −E[S]  (surprisal, the simple reference),     h = ℋ/N

Both are unbiased; they agree only if the sampler drew from the policy that is scored, which is
therefore a test of the instrument (`isentrope check`). Where the sampler's log-probabilities are
kept, each response has the weight policy over sampler (T2a), which is 1 for the policy's own; if
these weights are uneven the estimate says so and has no interval.
"""

from __future__ import annotations

from torch import Tensor

from isentrope.estimate import Estimate
from isentrope.estimators.functional import Functional, Functionals
from isentrope.estimators.importance import diagnose
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.sample import sampler_logprobs
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import Scores, score
from isentrope.rollouts import Rollouts


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
    scores = score(policy, rollouts)
    return _mean(scores, scores.entropies, rollouts, functional, "rao-blackwell")


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
    scores = score(policy, rollouts)
    return _mean(scores, -scores.logprobs, rollouts, functional, "surprisal")


def _mean(scores: Scores, terms: Tensor, rollouts, functional, method) -> Estimate:
    tokens = scores.mask.double()
    f = Functionals(functional, "sequence", tokens)
    ratios = scores.logprobs - sampler_logprobs(rollouts, scores)
    trust = diagnose(ratios, tokens)
    result = infinitesimal_jackknife(lambda w: f(w, ratios, terms)[None], rollouts.prompt_index)
    return Estimate.from_standard_error(
        float(result.values[0]),
        float(result.standard_errors[0]),
        result.n_units,
        unit=f.unit,
        method=method,
        ess=trust.ess_whole,
        khat=trust.khat,
        warnings=trust.warnings,
        trusted=trust.verdict == "trust",
    )
