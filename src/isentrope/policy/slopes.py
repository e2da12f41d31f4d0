"""Slopes of log-probabilities and entropies along several directions, in one forward-mode pass.

    ∂_v s_k = <∂s_k/∂h_k, ∂_v h_k>,     ∂_v H_k = <∂H_k/∂h_k, ∂_v h_k>

Forward mode goes through the decoder only; the head enters through ∂s/∂h and ∂H/∂h (`head`), which
are the same for every direction. A head that is not a plain frozen linear
layer is differentiated like the rest of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.models.batching import PADDING_OF_SLOPES, MicroBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivatives import require_derivatives
from isentrope.policy.head import entropy_grad_hidden, is_frozen_linear, logprob_grad_hidden
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect, score_along_each, stack_directions
from isentrope.policy.token_statistics import Scores, token_statistics

DIRECTIONS_OF_A_BATCH = 4
"""Directions up to which a micro-batch has all its tokens: each takes the memory of an evaluation.

More directions in smaller micro-batches share the pass at θ, and are faster on a CPU.
"""


def smaller_batches(directions: int) -> int:
    """How many times fewer tokens a micro-batch has with so many directions."""
    return -(-directions // DIRECTIONS_OF_A_BATCH)


def logprob_jvp(
    policy: Policy, rollouts: Rollouts, directions: Iterable[Vector]
) -> tuple[Scores, list[Tensor]]:
    """Scores at θ, and the first derivative of every log-probability along each direction.

    Args:
        policy: The policy.
        rollouts: n sequences.
        directions: v_1 … v_m, at least one.

    Returns:
        Scores, and for each direction (n, t) ∂_v s in nats per unit η, 0 where there is no token.
    """
    head = policy.head
    if policy.spreads_theta or not is_frozen_linear(head):
        scores, *slopes = score_along_each(policy, rollouts, directions)
        return scores, [slope.logprobs for slope in slopes]

    def along(hidden: Tensor, targets: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        s = (slopes * logprob_grad_hidden(hidden, head, targets, policy.temperature)).sum(-1)
        return s, torch.zeros_like(s)

    scores, derivatives = _through_hidden(policy, rollouts, directions, along)
    return scores, [slope.logprobs for slope in derivatives]


def score_jvp(
    policy: Policy, rollouts: Rollouts, directions: Iterable[Vector]
) -> tuple[Scores, list[Scores]]:
    """Scores at θ, and the first derivative of every log-probability and entropy.

    Args:
        policy: The policy.
        rollouts: n sequences.
        directions: v_1 … v_m, at least one.

    Returns:
        Scores, and for each direction scores that hold ∂_v s and ∂_v H, in nats per unit η.
    """
    head = policy.head
    if policy.spreads_theta or not is_frozen_linear(head):
        scores, *slopes = score_along_each(policy, rollouts, directions)
        return scores, slopes

    def along(hidden: Tensor, targets: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        of_s = logprob_grad_hidden(hidden, head, targets, policy.temperature)
        of_entropy = entropy_grad_hidden(hidden, head, targets, policy.temperature)
        return (slopes * of_s).sum(-1), (slopes * of_entropy).sum(-1)

    return _through_hidden(policy, rollouts, directions, along)


def _through_hidden(
    policy: Policy,
    rollouts: Rollouts,
    directions: Iterable[Vector],
    along: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Scores, list[Scores]]:
    """Scores, and (directions, m) slopes of s and H by the slopes of the hidden states."""
    require_derivatives(policy, rollouts)
    stacked = stack_directions(policy, directions)
    count = len(next(iter(stacked.values())))

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        hidden, slopes = _hidden_slopes(policy, batch, stacked)
        with torch.no_grad(), policy.precision.active():
            scores = token_statistics(
                hidden,
                policy.head,
                batch.targets,
                temperature=policy.temperature,
                vocab_chunk=policy.vocab_chunk,
                dtype=policy.precision.entropy,
            )
            pairs = zip(*along(hidden, batch.targets, slopes), strict=True)
        return (*scores, *(x for pair in pairs for x in pair))

    scores, *derivatives = collect(
        policy, rollouts, packed, PADDING_OF_SLOPES, smaller_batches(count)
    )
    return scores, derivatives


def _hidden_slopes(policy: Policy, batch: MicroBatch, stacked: Vector) -> tuple[Tensor, Tensor]:
    """(m, d) hidden states and their (directions, m, d) derivatives."""
    count = len(next(iter(stacked.values())))

    def at(theta: Vector) -> Tensor:
        return policy.packed_hidden(batch, theta, count)

    def along(direction: Vector) -> Any:
        return torch.func.jvp(at, (policy.theta,), (direction,))

    return torch.func.vmap(along, out_dims=cast(Any, (None, 0)))(stacked)
