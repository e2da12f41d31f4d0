"""Scores of whole batches: s and H of every token, at θ, elsewhere and along directions.

Rollouts are scored in micro-batches. Derivatives along a direction are by forward mode. A prompt is
read once for all its responses where that is faster. Work is counted in tokens: those
that the model reads, and `padding` for each call of it. Responses to one prompt make a micro-batch
of their own, in which the prompt is read once, if that saves more than the calls cost: one for the
prompt, and one for each part of responses of similar length.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from isentrope.models.attention import keeps_plain_cache
from isentrope.models.batching import (
    MicroBatch,
    RowRange,
    cut_by_length,
    micro_batches,
    padded,
    tokens_read,
)
from isentrope.models.sharding import Parameters
from isentrope.nouns.rollout_columns import numbered
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.policy.language_model import Policy
from isentrope.policy.short_memory import smaller_where_memory_is_short
from isentrope.policy.token_statistics import Scores, require_finite
from isentrope.system.argument_types import refuse_other_types

GROUPS_OF_A_PROCESS = 4
"""Prompts per process from which all responses to a prompt go to one process."""


def scoring_batches(
    policy: Policy, rollouts: Rollouts, max_tokens: int, padding: int
) -> list[MicroBatch]:
    """Cut this process's part of rollouts into micro-batches of at most `max_tokens` tokens.

    Args:
        policy: The policy that reads them, whose `ranks` share them.
        rollouts: n sequences.
        max_tokens: Budget of padded tokens, those of a shared prompt counted for every sequence.
        padding: Padded tokens that cost as much as one more call of the model.

    Returns:
        Micro-batches, at least one, which may not be counted.
    """
    ranks = policy.ranks
    prompt_of = numbered(rollouts.prompt_ids)  # whichever draws they are of
    prompts = max(prompt_of) + 1
    if prompts == len(rollouts) or policy.sharded or not keeps_plain_cache(policy.model):
        return micro_batches(rollouts, max_tokens, ranks, padding=padding)
    totals = tokens_read(rollouts)
    together = prompts >= GROUPS_OF_A_PROCESS * ranks.size
    owner = ranks.owners(totals, torch.tensor(prompt_of) if together else None)
    rows_here = [i for i in range(len(totals)) if int(owner[i]) == ranks.rank]
    rows_here.sort(key=lambda i: -totals[i])
    groups: dict[int, list[int]] = {}
    for i in rows_here:
        groups.setdefault(prompt_of[i], []).append(i)
    shared: list[MicroBatch] = []
    unshared: list[int] = []
    for rows in groups.values():
        prompt = len(rollouts.prompt_ids[rows[0]]) - 1
        for chosen in cut_by_length(rows, totals, max_tokens, max_tokens):
            parts: list[RowRange] = []
            for part in cut_by_length(chosen, totals, max_tokens, padding):
                start = parts[-1].stop if parts else 0
                parts.append(RowRange(start, start + len(part), totals[part[0]]))
            if prompt * (len(chosen) - 1) > padding * (1 + len(parts)):
                batch = padded(rollouts, chosen)
                shared.append(replace(batch, prompt=prompt, parts=tuple(parts)))
            else:
                unshared += chosen
    unshared.sort(key=lambda i: -totals[i])
    separate = [
        padded(rollouts, rows) for rows in cut_by_length(unshared, totals, max_tokens, padding)
    ]
    return [*separate, *shared] or [replace(padded(rollouts, [0]), counted=False)]


FEATURES = 32
"""Projected hidden-state coordinates from which the mean of what follows is predicted."""

PackedScores = Callable[[MicroBatch], Sequence[Tensor]]
"""Maps a micro-batch to pairs (s, H) of (m,), features last if there are any."""


@refuse_other_types
def score(
    policy: Policy,
    rollouts: Rollouts,
    params: Parameters | None = None,
    *,
    features: int = 0,
    variances: bool = False,
) -> Scores:
    """Score every response under the policy, or under other parameters of it.

    Args:
        policy: The policy.
        rollouts: n sequences.
        params: Trainable parameters to use in place of θ; the model is not touched.
        features: Number k of projected hidden-state coordinates to give before each token.
        variances: Whether to give the variance of every log-probability given its prefix.

    Returns:
        Scores at θ, or at `params`.

    Raises:
        NotFiniteError: If a score is not finite, naming the first such sequence.
    """
    packed = partial(policy.packed_scores, params=params, features=features, variances=variances)
    with torch.no_grad():
        scores, *spread = collect(policy, rollouts, packed)
    return replace(scores, variances=spread[0].logprobs) if spread else scores


def score_along(
    policy: Policy, rollouts: Rollouts, direction: Vector, order: int, *, variances: bool = False
) -> tuple[Scores, ...]:
    """Scores at θ and their derivatives along θ + e v at e = 0, by forward mode.

    Args:
        policy: The policy.
        rollouts: n sequences.
        direction: v.
        order: Highest derivative: 1, or 2 (forward over forward).
        variances: Whether the scores and their first derivative get `variances`.

    Returns:
        (scores, ∂_v scores) or (scores, ∂_v scores, ∂²_v scores); `logprobs` and `entropies` of
        the latter hold derivatives per unit η and η².

    Raises:
        DerivativeError: If the model's derivatives are wrong.
    """
    policy.require_direction(direction)
    require_derivatives(policy, rollouts, "forward" if order == 1 else "forward over forward")

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        def at(point: Parameters) -> tuple[Tensor, ...]:
            return policy.packed_scores(batch, point, variances=variances)

        # order + 1 tuples, the values and each derivative: s and H, each (m,), then V and F if any
        series = policy.derivatives(at, direction, order)
        spread = series[0][2:]  # F is a derivative's variance, computed beside the values
        return (*spread, *(x for scores in series for x in scores[:2]))

    columns = collect(policy, rollouts, packed)
    if not variances:
        return columns
    spread, scores, first, *second = columns  # V and F stand where s and H do elsewhere
    scores = replace(scores, variances=spread.logprobs)
    return (scores, replace(first, variances=spread.entropies), *second)


def collect(
    policy: Policy,
    rollouts: Rollouts,
    packed_scores: PackedScores,
    share: int = 1,
) -> tuple[Scores, ...]:
    """Scores of what a function gives of each micro-batch.

    Args:
        policy: The policy.
        rollouts: n sequences.
        packed_scores: What is computed of a micro-batch.
        share: As for `collect_columns`.

    Returns:
        One `Scores` per pair.

    Raises:
        NotFiniteError: If a score is not finite.
    """
    out = collect_columns(policy, rollouts, packed_scores, share)
    features = out.pop() if len(out) % 2 else None  # (n, t, k), after pairs of (n, t)
    pairs = zip(out[::2], out[1::2], strict=True)
    scores = tuple(Scores(s, h, rollouts.mask, features) for s, h in pairs)
    for part in scores:
        require_finite(part)
    return scores


@smaller_where_memory_is_short
def collect_columns(
    policy: Policy,
    rollouts: Rollouts,
    packed_columns: PackedScores,
    share: int = 1,
) -> list[Tensor]:
    """Run a function over micro-batches and put its outputs in place.

    Args:
        policy: The policy.
        rollouts: n sequences.
        packed_columns: What is computed of a micro-batch, (m, ...) each.
        share: How many times fewer tokens a micro-batch has than `policy.max_tokens`.

    Returns:
        (n, t, ...) float64 each, the same on every process.
    """
    rollouts.require_fit(policy.vocabulary, policy.context)
    mask = rollouts.mask
    out: list[Tensor] = []
    tokens = max(1, policy.max_tokens // share)
    with policy.scorer.several_passes():
        for batch in scoring_batches(policy, rollouts, tokens, policy.padding):
            packed = [x.detach() for x in packed_columns(batch.to(policy.device))]  # each (m, ...)
            if not out:
                shapes = [(*mask.shape, *x.shape[1:]) for x in packed]
                out = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
            for target, values in zip(out, packed, strict=True):
                batch.place(values, target)
    policy.ranks.sum(out)  # one process wrote each token; the others hold 0 there
    return out
