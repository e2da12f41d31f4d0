"""What trainers call entropy: other functions of the responses' weights on one batch (T1).

With N the number of tokens that count and T those of a response:

    per_token          Σ H / N, the exact one       micro_batch_means  mean of Σ H / N of each
    response_means     mean of Σ H / T              per_response       mean of Σ H
    surprisal          −Σ s / N                     sampler_…          by what the sampler recorded
    without_end        without end tokens           finished           without cut responses
    top_tokens         the 20 % with most H
"""

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts

EXACT = "per_token"


TOP_SHARE = 0.2
"""Share of the tokens that `top_tokens` is of."""

PARTITIONS = 16
"""Random orders of the batch that `micro_batch_means` averages over: trainers shuffle it."""

Definition = Callable[[Tensor], Tensor]
"""From the weights of responses (n,) to a number."""


def mean_of_tokens(x: Tensor, counts: Tensor) -> Definition:
    """The mean of (n, t) numbers over the tokens that count, (n, t) of 0 and 1."""
    sums = (counts * x).sum(1)
    tokens = counts.sum(1)
    return lambda w: w @ sums / (w @ tokens)


def definitions(
    scored: ScoredBatch, batch: Rollouts, end_tokens: Collection[int], size: int
) -> dict[str, Definition]:
    """Every definition that a batch has numbers for.

    Args:
        scored: The batch as the policy scores it.
        batch: The batch.
        end_tokens: Tokens that end a response.
        size: Responses of a micro-batch; as many as the batch has, or more, for a single one.

    Returns:
        Definition by name, the exact one first.
    """
    H = scored.entropies
    mask = scored.functional.tokens
    sums = (mask * H).sum(1)
    lengths = mask.sum(1)
    responses = torch.ones_like(lengths)[:, None]  # each counts once
    by_name = {EXACT: mean_of_tokens(H, mask)}
    if size < len(batch):
        by_name["micro_batch_means"] = _average_over_micro_batches(sums, lengths, size)
    by_name["response_means"] = mean_of_tokens((sums / lengths.clamp_min(1))[:, None], responses)
    by_name["per_response"] = mean_of_tokens(sums[:, None], responses)
    by_name["surprisal"] = mean_of_tokens(-scored.series[0].logprobs, mask)
    if batch.sampler_logprobs is not None:
        by_name["sampler_surprisal"] = mean_of_tokens(-batch.padded("sampler_logprobs"), mask)
    if batch.sampler_entropies is not None:
        by_name["sampler_entropy"] = mean_of_tokens(batch.padded("sampler_entropies"), mask)
    ended = torch.tensor([[int(r[-1]) in end_tokens] for r in batch.response_ids]).double()
    if bool(ended.any()):
        tokens_left = mask.flip(1).cumsum(1).flip(1)  # this one included
        last = mask.where(tokens_left == 1, 0.0)
        by_name["without_end"] = mean_of_tokens(H, mask - last * ended)
        if not bool(ended.all()):
            by_name["finished"] = mean_of_tokens(H, mask * ended)
    threshold = H[mask > 0].quantile(1 - TOP_SHARE)
    # not the mean of the tokens above: this form's derivative by the threshold is 0
    excess = (H - threshold).clamp_min(0) / TOP_SHARE
    by_name["top_tokens"] = mean_of_tokens(threshold + excess, mask)
    return by_name


def _average_over_micro_batches(sums: Tensor, lengths: Tensor, size: int) -> Definition:
    """Mean of Σ H / N of micro-batches, over `PARTITIONS` orders of the batch."""
    groups = _partition(len(sums), size)

    def definition(w: Tensor) -> Tensor:
        means = (groups @ (w * sums)) / (groups @ (w * lengths))
        return (groups @ w) @ means / groups.sum(0).dot(w)

    return definition


def _partition(n: int, size: int) -> Tensor:
    """Which of n responses is in which micro-batch of each order: (micro-batches, n) of 0 and 1."""
    rng = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(n, generator=rng) for _ in range(PARTITIONS)])
    count = math.ceil(n / size)
    rows = orders.argsort(1) // size + count * torch.arange(PARTITIONS)[:, None]
    return torch.zeros(PARTITIONS * count, n, dtype=torch.float64).scatter_(0, rows, 1.0)


def spread_of_orders(scored: ScoredBatch, size: int) -> float:
    """Standard deviation of `micro_batch_means` between orders of the batch."""
    mask = scored.functional.tokens
    groups = _partition(len(mask), size)
    means = (groups @ (mask * scored.entropies).sum(1)) / (groups @ mask.sum(1))
    return float(means.view(PARTITIONS, -1).mean(1).std())


def half_of_interval(
    batches: Sequence[tuple[Estimate, int]], responses: int, *, above: bool
) -> float:
    """Half of the interval that a definition has on a batch of some size: the longest that any has.

    The error of a single small batch is too small where it happens to hold no response of a rare
    mode, and a larger one that holds some shows it.

    Args:
        batches: The definition on each, with its interval, and the responses of the batch.
        responses: Those of the batch in question.
        above: Whether the upper half is meant.

    Returns:
        The longest half, times √(the batch's responses / those in question); NaN where none has an
        interval.
    """
    end = "ci_high" if above else "ci_low"
    halves = [abs(getattr(x, end) - x.value) * math.sqrt(n / responses) for x, n in batches]
    return max((half for half in halves if math.isfinite(half)), default=math.nan)
