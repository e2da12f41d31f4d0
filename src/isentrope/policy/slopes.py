"""Slopes of log-probabilities and entropies along several directions, in one forward-mode pass.

    ∂_v s_k = <∂s_k/∂h_k, ∂_v h_k>,     ∂_v H_k = <∂H_k/∂h_k, ∂_v h_k>

Forward mode goes through the decoder only; the head enters through ∂s/∂h and ∂H/∂h (`head`), which
are the same for every direction. A head that is not a plain frozen linear
layer is differentiated like the rest of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.models.batching import PADDING_OF_SLOPES, MicroBatch
from isentrope.nouns.frozen_products import FrozenProducts
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.derivatives import require_derivatives
from isentrope.policy.head import hidden_gradient, is_frozen_linear
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect, score_along_each, stack_directions
from isentrope.policy.token_statistics import Scores, token_statistics

DIRECTIONS_OF_A_BATCH = 4
"""Directions up to which a micro-batch has all its tokens: each takes the memory of an evaluation.

More directions in smaller micro-batches share the pass at θ, and are faster on a CPU.
"""


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
    scores, slopes = score_jvp(policy, rollouts, directions, entropies=False)
    return scores, [slope.logprobs for slope in slopes]


def score_jvp(
    policy: Policy, rollouts: Rollouts, directions: Iterable[Vector], *, entropies: bool = True
) -> tuple[Scores, list[Scores]]:
    """Scores at θ, and the first derivative of every log-probability and entropy.

    Args:
        policy: The policy.
        rollouts: n sequences.
        directions: v_1 … v_m, at least one.
        entropies: Whether the derivatives of entropies are needed; else they may be 0.

    Returns:
        Scores, and for each direction scores that hold ∂_v s and ∂_v H, in nats per unit η.
    """
    head = policy.head
    if policy.spreads_theta or not is_frozen_linear(head):
        scores, *slopes = score_along_each(policy, rollouts, directions)
        return scores, slopes
    require_derivatives(policy, rollouts)
    stacked = stack_directions(policy, directions)
    count = len(next(iter(stacked.values())))

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        hidden, slopes = _hidden_slopes(policy, batch, stacked)  # (m, d), (directions, m, d)
        one = hidden.new_ones(len(hidden))
        with torch.no_grad(), policy.precision.active():
            scores = token_statistics(
                hidden,
                head,
                batch.targets,
                temperature=policy.temperature,
                vocab_chunk=policy.vocab_chunk,
                dtype=policy.precision.entropy,
            )
            of = hidden, head, batch.targets
            of_s = (slopes * hidden_gradient(*of, one, None, policy.temperature)).sum(-1)
            of_entropy = torch.zeros_like(of_s)
            if entropies:
                of_entropy = hidden_gradient(*of, 0 * one, one, policy.temperature)
                of_entropy = (slopes * of_entropy).sum(-1)
        return (*scores, *(x for pair in zip(of_s, of_entropy, strict=True) for x in pair))

    share = -(-count // DIRECTIONS_OF_A_BATCH)
    scores, *derivatives = collect(policy, rollouts, packed, PADDING_OF_SLOPES, share)
    return scores, derivatives


def _hidden_slopes(policy: Policy, batch: MicroBatch, stacked: Vector) -> tuple[Tensor, Tensor]:
    """(m, d) hidden states and their (directions, m, d) derivatives."""
    count = len(next(iter(stacked.values())))

    def at(theta: Vector) -> Tensor:
        return policy.packed_hidden(batch, theta, count)

    def along(direction: Vector) -> Any:
        return torch.func.jvp(at, (policy.theta,), (direction,))

    with FrozenProducts():
        return torch.func.vmap(along, out_dims=cast(Any, (None, 0)))(stacked)
