"""Scores of whole batches: s and H of every token, at θ, elsewhere and along directions.

Rollouts are scored in micro-batches. Derivatives along a direction are by forward mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from isentrope.models.batching import MicroBatch
from isentrope.models.sharding import Point
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring_batches import scoring_batches, smaller_where_memory_is_short
from isentrope.policy.token_statistics import Scores, require_finite

FEATURES = 32
"""Projected hidden-state coordinates from which the mean of what follows is predicted."""

PackedScores = Callable[[MicroBatch], Sequence[Tensor]]
"""Maps a micro-batch to pairs (s, H) of (m,), features last if there are any."""


def score(
    policy: Policy,
    rollouts: Rollouts,
    params: Point | None = None,
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
        def at(point: Point) -> tuple[Tensor, ...]:
            return policy.packed_scores(batch, point, variances=variances)

        # order + 1 tuples, the values and each derivative: s and H, each (m,), then V and F if any
        series = policy.derivatives(at, direction, order)
        spread = series[0][2:]  # F is a derivative's variance, computed beside the values
        return (*spread, *(x for of in series for x in of[:2]))

    columns = collect(policy, rollouts, packed)
    if not variances:
        return columns
    spread, here, first, *second = columns
    here = replace(here, variances=spread.logprobs)
    return (here, replace(first, variances=spread.entropies), *second)


@smaller_where_memory_is_short
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
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    rollouts.require_fit(policy.vocabulary, positions)
    mask = rollouts.mask
    out: list[Tensor] = []
    tokens = max(1, policy.max_tokens // share)
    for batch in scoring_batches(policy, rollouts, tokens, policy.padding):
        packed = [x.detach() for x in packed_columns(batch.to(policy.device))]  # each (m, ...)
        out = out or [torch.zeros(*mask.shape, *x.shape[1:], dtype=torch.float64) for x in packed]
        for target, values in zip(out, packed, strict=True):
            batch.place(values, target)
    policy.ranks.sum(out)  # one process wrote each token; the others hold 0 there
    return out
