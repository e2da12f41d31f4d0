"""The entropy of a policy (T1), its gradient (T4a), and what trainers call entropy.

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

What trainers call entropy are other functions of the responses' weights on one batch. With N the
number of tokens that count and T those of a response:

    per_token          Σ H / N, the exact one       micro_batch_means  mean of Σ H / N of each
    response_means     mean of Σ H / T              per_response       mean of Σ H
    surprisal          −Σ s / N                     sampler_…          by what the sampler recorded
    without_end        without end tokens           finished           without cut responses
    top_tokens         the 20 % with most H
"""

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from isentrope.estimators.functional import (
    EstimatorOptions,
    Functional,
    Method,
    infinitesimal_jackknife,
)
from isentrope.estimators.sample import ScoredBatch, score_batch
from isentrope.estimators.tail import too_few_for_modes
from isentrope.models.architecture import derivative_of_scores
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy

EXACT = "per_token"
TOP = 0.2
"""Share of the tokens that `top_tokens` is of."""
PARTITIONS = 16
"""Random orders of the batch that `micro_batch_means` averages over: trainers shuffle it."""

Statistic = Callable[[Tensor], Tensor]
"""From the weights of responses (n,) to a number."""


def mean_of_tokens(x: Tensor, counted: Tensor) -> Statistic:
    """The mean of (n, t) numbers over the tokens that count, (n, t) of 0 and 1."""
    top, bottom = (counted * x).sum(1), counted.sum(1)
    return lambda w: w @ top / (w @ bottom)


def definitions(
    scored: ScoredBatch, batch: Rollouts, end_tokens: Collection[int], size: int
) -> dict[str, Statistic]:
    """Every definition that a batch has numbers for.

    Args:
        scored: The batch as the policy scores it.
        batch: The batch.
        end_tokens: Tokens that end a response.
        size: Responses of a micro-batch; as many as the batch has, or more, for a single one.

    Returns:
        Definition by name, the exact one first.
    """
    H, mask = scored.entropies, scored.functional.tokens
    sums, counts = (mask * H).sum(1), mask.sum(1)
    each = torch.ones_like(counts)[:, None]
    found = {EXACT: mean_of_tokens(H, mask)}
    if size < len(batch):
        groups = _partitions(len(batch), size)
        found["micro_batch_means"] = lambda w: (
            (groups @ w) @ ((groups @ (w * sums)) / (groups @ (w * counts))) / groups.sum(0).dot(w)
        )
    found["response_means"] = mean_of_tokens((sums / counts.clamp_min(1))[:, None], each)
    found["per_response"] = mean_of_tokens(sums[:, None], each)
    found["surprisal"] = mean_of_tokens(-scored.series[0].logprobs, mask)
    if batch.sampler_logprobs is not None:
        found["sampler_surprisal"] = mean_of_tokens(-batch.padded("sampler_logprobs"), mask)
    if batch.sampler_entropies is not None:
        found["sampler_entropy"] = mean_of_tokens(batch.padded("sampler_entropies"), mask)
    ended = torch.tensor([[int(r[-1]) in end_tokens] for r in batch.response_ids]).double()
    if bool(ended.any()):
        last = mask * (mask.flip(1).cumsum(1).flip(1) == 1)
        found["without_end"] = mean_of_tokens(H, mask - last * ended)
        if not bool(ended.all()):
            found["finished"] = mean_of_tokens(H, mask * ended)
    threshold = H[mask > 0].quantile(1 - TOP)  # the derivative in it is 0
    found["top_tokens"] = mean_of_tokens(threshold + (H - threshold).clamp_min(0) / TOP, mask)
    return found


def _partitions(n: int, size: int) -> Tensor:
    """Which of n responses is in which micro-batch of each order."""
    rng = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(n, generator=rng) for _ in range(PARTITIONS)])
    count = math.ceil(n / size)
    rows = orders.argsort(1) // size + count * torch.arange(PARTITIONS)[:, None]
    return torch.zeros(PARTITIONS * count, n, dtype=torch.float64).scatter_(0, rows, 1.0)


def spread_of_orders(scored: ScoredBatch, size: int) -> float:
    """Standard deviation of `micro_batch_means` between orders of the batch."""
    mask = scored.functional.tokens
    groups = _partitions(len(mask), size)
    means = (groups @ (mask * scored.entropies).sum(1)) / (groups @ mask.sum(1))
    return float(means.view(PARTITIONS, -1).mean(1).std())


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
    sample = score_batch(policy, rollouts, EstimatorOptions(functional, "sequence"))
    terms = sample.entropies if method == "rao-blackwell" else -sample.series[0].logprobs
    f, ratios, trust = sample.functional, sample.log_ratios, sample.trust
    result = infinitesimal_jackknife(lambda w: f(w, ratios, terms)[None], rollouts.prompt_index)
    warnings = (*trust.warnings, *too_few_for_modes(result.n_units))
    about = trust.options("sequence") | {"method": method, "warnings": warnings}
    return result.estimate(0, unit=f.unit, **about)


def entropy_gradient(
    policy: Policy,
    rollouts: Rollouts,
    *,
    functional: Functional = "per_token",
    method: Method = "prefix",
) -> Vector:
    """Gradient of ℋ or h by the trainable parameters.

    Args:
        policy: The policy that sampled the rollouts.
        rollouts: An unfiltered E-batch.
        functional: "per_token" (h) or "per_sequence" (ℋ).
        method: The estimator whose derivative this is.

    Returns:
        g_H by parameter name, float64, nats (per token or sequence) per unit of θ.
    """
    sample = score_batch(policy, rollouts, EstimatorOptions(functional, method))
    by_logprob, by_entropy = cotangents(sample)
    with derivative_of_scores(policy.model):
        return weighted_gradient(policy, rollouts, by_logprob, by_entropy)


def cotangents(sample: ScoredBatch) -> tuple[Tensor, Tensor]:
    """∂F/∂s and ∂F/∂H at θ, at equal weights of the samples.

    Args:
        sample: Scores at θ and the functional.

    Returns:
        Two (n, t) arrays.
    """
    omega = torch.ones(len(sample.entropies), dtype=torch.float64)
    by_arrays = torch.func.grad(sample.functional, argnums=(1, 2))
    return by_arrays(omega, sample.log_ratios, sample.entropies)
