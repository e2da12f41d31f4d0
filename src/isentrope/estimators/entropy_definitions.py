"""What trainers call entropy: definitions on one batch, each a function of the responses' weights.

With N the number of tokens that count and T those of a response:

    per_token          Σ H / N, the exact one       micro_batch_means  mean of Σ H / N of each
    response_means     mean of Σ H / T              per_response       mean of Σ H
    surprisal          −Σ s / N                     sampler_…          by what the sampler recorded
    without_end        without end tokens           finished           without cut responses
    top_tokens         the 20 % with most H
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.rollouts import Rollouts

EXACT = "per_token"
TOP = 0.2
"""Share of the tokens that `top_tokens` is of."""
PARTITIONS = 16
"""Random orders of the batch that `micro_batch_means` averages over: trainers shuffle it."""

Statistic = Callable[[Tensor], Tensor]
"""From the weights of responses (n,) to a number."""


def mean_of_tokens(x: Tensor, counted: Tensor) -> Statistic:
    """The mean of (n, t) numbers over the tokens that count, (n, t) of 0 and 1."""
    return _ratio((counted * x).sum(1), counted.sum(1))


def _ratio(top: Tensor, bottom: Tensor) -> Statistic:
    return lambda w: w @ top / (w @ bottom)


def definitions(
    scored: ScoredBatch, batch: Rollouts, end_tokens: Collection[int], groups: Tensor | None
) -> dict[str, Statistic]:
    """Every definition that a batch has numbers for.

    Args:
        scored: The batch as the policy scores it.
        batch: The batch.
        end_tokens: Tokens that end a response.
        groups: Micro-batches of `partitions`; None for a single one.

    Returns:
        Definition by name, the exact one first.
    """
    H, mask = scored.entropies, scored.series[0].mask.double()
    sums, counts = (mask * H).sum(1), mask.sum(1)
    each = torch.ones_like(counts)
    found = {EXACT: _ratio(sums, counts)}
    if groups is not None:
        found["micro_batch_means"] = lambda w: (
            (groups @ w) @ ((groups @ (w * sums)) / (groups @ (w * counts))) / groups.sum(0).dot(w)
        )
    found["response_means"] = _ratio(sums / counts.clamp_min(1), each)
    found["per_response"] = _ratio(sums, each)
    found["surprisal"] = mean_of_tokens(-scored.series[0].logprobs, mask)
    if batch.sampler_logprobs is not None:
        found["sampler_surprisal"] = mean_of_tokens(-batch.padded("sampler_logprobs"), mask)
    if batch.sampler_entropies is not None:
        found["sampler_entropy"] = mean_of_tokens(batch.padded("sampler_entropies"), mask)
    ended = torch.tensor([[float(int(r[-1]) in end_tokens)] for r in batch.response_ids]).double()
    if bool(ended.any()):
        last = mask * (mask.flip(1).cumsum(1).flip(1) == 1)
        found["without_end"] = mean_of_tokens(H, mask - last * ended)
        if not bool(ended.all()):
            found["finished"] = mean_of_tokens(H, mask * ended)
    threshold = H[mask > 0].quantile(1 - TOP)  # the derivative in it is 0
    found["top_tokens"] = mean_of_tokens(threshold + (H - threshold).clamp_min(0) / TOP, mask)
    return found


def partitions(n: int, size: int) -> Tensor | None:
    """Which of n responses is in which micro-batch of each order; None for a single one."""
    if size >= n:
        return None
    rng = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(n, generator=rng) for _ in range(PARTITIONS)])
    count = math.ceil(n / size)
    rows = orders.argsort(1) // size + count * torch.arange(PARTITIONS)[:, None]
    return torch.zeros(PARTITIONS * count, n, dtype=torch.float64).scatter_(0, rows, 1.0)


def spread_of_orders(scored: ScoredBatch, groups: Tensor) -> float:
    """Standard deviation of `micro_batch_means` between orders of the batch."""
    mask = scored.series[0].mask.double()
    means = (groups @ (mask * scored.entropies).sum(1)) / (groups @ mask.sum(1))
    return float(means.view(PARTITIONS, -1).mean(1).std())
