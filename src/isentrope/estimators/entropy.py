"""The entropy of a policy (T1) and its gradient (T4a).

    ℋ = E[ Σ_k H_k ]  (Rao-Blackwell)  =  −E[S]  (surprisal, the simple reference),     h = ℋ/N

Both are unbiased; they agree only if the sampler drew from the policy that is scored, which is
therefore a test of the setup (`isentrope check`). Where the sampler's log-probabilities are
kept, each response has the weight policy over sampler (T2a), which is 1 for the policy's own. A
sampler at another temperature is judged by its integrated effective sample size; one that differs
for an unknown reason leaves no interval (`sampler_match`).

The entropy gradient g_H = ∂_θ F takes one backward pass over E. The cotangents ∂F/∂r_ik and
∂F/∂H_ik of the same F that measures ΔH are taken on the arrays; then one backward pass over the
model contracts them with ∂s_ik and ∂H_ik. So <g_H, v> equals δH₁ of the same samples to rounding,
for every method and functional.
"""

from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.estimators.means import too_few_for_modes
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import cotangents, score_batch
from isentrope.models.architecture import derivative_of_scores
from isentrope.nouns.choices import Method, Per
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types


@refuse_other_types
def entropy(policy: Policy, rollouts: Rollouts, *, per: Per = "token") -> Estimate:
    """Rao-Blackwell entropy: exact conditional entropies along sampled prefixes.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        per: "token" (h) or "sequence" (ℋ).

    Returns:
        h in nats per token or ℋ in nats per sequence.
    """
    return _average(policy, rollouts, per, "rao-blackwell")


@refuse_other_types
def surprisal_entropy(policy: Policy, rollouts: Rollouts, *, per: Per = "token") -> Estimate:
    """Entropy as mean surprisal −S: higher variance, kept as reference.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        per: "token" or "sequence".

    Returns:
        h in nats per token or ℋ in nats per sequence.
    """
    return _average(policy, rollouts, per, "surprisal")


def _average(policy: Policy, rollouts: Rollouts, per: Per, method: str) -> Estimate:
    """F with H, or with the surprisal in its place."""
    sample = score_batch(policy, rollouts, EstimatorOptions(per, "sequence"))
    terms = sample.entropies if method == "rao-blackwell" else -sample.series[0].logprobs
    f = sample.functional
    ratios = sample.log_ratios
    result = infinitesimal_jackknife(lambda w: f(w, ratios, terms)[None], rollouts.prompt_index)
    warnings = (*sample.trust.warnings, *too_few_for_modes(result.n_units))
    options = sample.trust.options("sequence") | {"method": method, "warnings": warnings}
    return result.estimate(0, unit=f.unit, **options)


@refuse_other_types
def entropy_gradient(
    policy: Policy,
    rollouts: Rollouts,
    *,
    per: Per = "token",
    method: Method = "prefix",
) -> Vector:
    """Gradient of ℋ or h by the trainable parameters.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        per: "token" (h) or "sequence" (ℋ).
        method: The estimator whose derivative this is.

    Returns:
        g_H by parameter name, float64, nats (per token or sequence) per unit of θ.

    Raises:
        DerivativeError: If the model's derivatives are wrong.
    """
    estimator = EstimatorOptions(per, method)
    require_derivatives(policy, rollouts, "backward")
    sample = score_batch(policy, rollouts, estimator)
    by_logprob, by_entropy = cotangents(sample)
    with derivative_of_scores(policy.model):
        return weighted_gradient(policy, rollouts, by_logprob, by_entropy)
