"""Derivatives of log-probabilities and entropies: a gradient of their sum, and slopes of each.

One backward pass gives the gradient of a weighted sum over tokens,

    ∂_θ Σ_ik (a_ik s_ik + b_ik H_ik)

and one forward-mode pass the slopes of every token along several directions,

    ∂_v s_k = <∂s_k/∂h_k, ∂_v h_k>,     ∂_v H_k = <∂H_k/∂h_k, ∂_v h_k>

Forward mode goes through the decoder only; the head enters through ∂s/∂h and ∂H/∂h (`head`), which
are the same for every direction. A head that is not a plain frozen linear
layer is differentiated like the rest of the model.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from isentrope.models.architecture import refusal_by_name
from isentrope.models.batching import MicroBatch, as_trained, micro_batches
from isentrope.models.requirements import require_no_checkpointing
from isentrope.models.sharding import layer_gradients
from isentrope.nouns.forward_mode import FrozenOperands, load_derivatives
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, zeros
from isentrope.parallel.ranks import ALONE, Ranks
from isentrope.parallel.sharded import is_sharded
from isentrope.policy.derivative_guard import require_derivatives
from isentrope.policy.head import hidden_gradient, is_frozen_linear
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect, score_along
from isentrope.policy.short_memory import smaller_where_memory_is_short
from isentrope.policy.token_statistics import Scores, token_statistics
from isentrope.system.memory import mapped_blocks

DIRECTIONS_OF_A_BATCH = 4
"""Directions up to which a micro-batch has all its tokens: each takes the memory of an evaluation.

More directions in smaller micro-batches share the pass at θ, and are faster on a CPU.
"""


def score_jvp(
    policy: Policy, rollouts: Rollouts, directions: Iterable[Vector], *, entropies: bool = True
) -> tuple[Scores, ...]:
    """Scores at θ, and the first derivative of every log-probability and entropy.

    Args:
        policy: The policy; where θ is spread over processes it is one pass per direction.
        rollouts: n sequences.
        directions: v_1 … v_m, at least one.
        entropies: Whether the derivatives of entropies are needed; else they may be 0.

    Returns:
        Scores, then for each direction scores that hold ∂_v s and ∂_v H, in nats per unit η.

    Raises:
        ValueError: If a direction is not over exactly θ, or not finite.
    """
    if policy.spreads_theta:
        pairs = [score_along(policy, rollouts, direction, 1) for direction in directions]
        return (pairs[0][0], *(slope for _, slope in pairs))
    require_derivatives(policy, rollouts)
    rows: dict[str, list[Tensor]] = {n: [] for n in policy.names}
    for direction in directions:  # not kept while they are stacked
        policy.require_direction(direction)
        for n, p in policy.theta.items():
            rows[n].append(direction[n].to(p.device, p.dtype))
    load_derivatives()
    stacked = {n: torch.stack(rows.pop(n)) for n in policy.names}
    count = len(next(iter(stacked.values())))
    by_hand = is_frozen_linear(policy.head)
    evaluate = policy.packed_hidden if by_hand else policy.packed_scores

    def packed(batch: MicroBatch) -> tuple[Tensor, ...]:
        def along(direction: Vector) -> Any:
            function = partial(evaluate, batch, directions=count)
            return torch.func.jvp(function, (policy.theta,), (direction,))

        # values do not depend on the direction, so vmap computes them once: out_dims None
        with FrozenOperands():
            values, slopes = torch.func.vmap(along, out_dims=cast(Any, (None, 0)))(stacked)
        if by_hand:
            values, slopes = _go_through_head(policy, batch, values, slopes, entropies)
        # s and H, each (m,); ∂s and ∂H, each (directions, m)
        return (*values, *(x for pair in zip(*slopes, strict=True) for x in pair))

    return collect(policy, rollouts, packed, -(-count // DIRECTIONS_OF_A_BATCH))


def _go_through_head(
    policy: Policy, batch: MicroBatch, hidden: Tensor, slopes: Tensor, entropies: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """Scores of hidden states (m, d), and their derivatives by slopes (directions, m, d)."""
    head: Any = policy.head
    ones = hidden.new_ones(len(hidden))
    temperature = policy.temperature
    with torch.no_grad(), policy.precision.active():
        by_hidden = hidden_gradient(hidden, head, batch.targets, ones, None, temperature)
        of_s = (slopes * by_hidden).sum(-1)
        of_entropy = torch.zeros_like(of_s)
        if entropies:
            zero = torch.zeros_like(ones)
            by_hidden = hidden_gradient(hidden, head, batch.targets, zero, ones, temperature)
            of_entropy = (slopes * by_hidden).sum(-1)
        return token_statistics(hidden, head, batch.targets, policy.softmax), (of_s, of_entropy)


Weights = tuple[Tensor, Tensor | None]
"""(n, t) weights a of the log-probabilities and b of the entropies, or None for no entropy term."""


def weighted_gradient(
    policy: Policy,
    rollouts: Rollouts,
    a: Tensor,
    b: Tensor | None = None,
    micro_batch: int | None = None,
) -> Vector:
    """The gradient by the trainable parameters.

    A pass that is rounded to 16 bits is one of training's own.

    Args:
        policy: The policy.
        rollouts: n sequences.
        a: (n, t) weights of the log-probabilities.
        b: (n, t) weights of the entropies, or None for no entropy term.
        micro_batch: Sequences per pass of training, where it is rounded; None for all in one.

    Returns:
        The gradient by parameter name, float64; 0 for a parameter that is not used.

    Raises:
        ValueError: If gradient checkpointing is active, or no trainable parameter is used.
    """
    return weighted_gradients(policy, rollouts, [(a, b)], None, micro_batch)[0]


def gradient_alone(
    policy: Policy, rollouts: Rollouts, a: Tensor, b: Tensor | None = None
) -> Vector:
    """As `weighted_gradient`, of sequences that this process has and no other.

    Args:
        policy: The policy, whose θ is not spread.
        rollouts: n sequences.
        a: (n, t) weights of the log-probabilities.
        b: (n, t) weights of the entropies, or None for no entropy term.

    Returns:
        The gradient by parameter name, float64, on this process.
    """
    return weighted_gradients(policy, rollouts, [(a, b)], ALONE)[0]


@smaller_where_memory_is_short
def weighted_gradients(
    policy: Policy,
    rollouts: Rollouts,
    weights: Sequence[Weights],
    ranks: Ranks | None = None,
    micro_batch: int | None = None,
) -> list[Vector]:
    """Gradients of several sums over the same sequences, which share the forward pass.

    Args:
        policy: The policy; where θ is spread over processes each sum takes its own forward pass.
        rollouts: n sequences.
        weights: Of each sum.
        ranks: The processes that share the work; None for those of the policy.
        micro_batch: Sequences per pass of training, where it is rounded; None for all in one.

    Returns:
        As `weighted_gradient`, one for each sum.

    Raises:
        ValueError: If gradient checkpointing is active, or no trainable parameter is used.
    """
    if policy.spreads_theta and len(weights) > 1:
        return [weighted_gradients(policy, rollouts, [w], ranks, micro_batch)[0] for w in weights]
    require_no_checkpointing(policy.model)
    rollouts.require_fit(policy.vocabulary)
    parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    theta = policy.theta
    names = policy.names
    totals = [zeros(theta) for _ in weights]
    ranks = policy.ranks if ranks is None else ranks
    batches = (
        micro_batches(rollouts, policy.max_tokens, ranks, padding=policy.padding)
        if policy.precision.rounding is None
        else as_trained(rollouts, micro_batch, policy.max_tokens, ranks)
    )
    with policy.scorer.several_passes():
        for batch in batches:
            batch = batch.to(policy.device)
            packed = [
                (
                    batch.pack(a.to(policy.device)),
                    None if b is None else batch.pack(b.to(policy.device)),
                )
                for a, b in weights
            ]
            with (
                mapped_blocks(),
                torch.enable_grad(),
                policy.precision.active(forward_mode=False),
                layer_gradients(theta, policy.model) as of_layers,
            ):
                with policy.precision.mixed(policy.device):
                    roots = _make_roots(policy, batch, packed, parameters)
                for k, (total, root) in enumerate(zip(totals, roots, strict=True)):
                    if not root.requires_grad:
                        raise ValueError(
                            "No trainable parameter is used in the forward pass "
                            f"({names[0]!r} is the first of {len(names)}): the policy does not "
                            "depend on θ."
                        )
                    if not batch.counted:  # run only so that the layers are gathered everywhere
                        root = 0 * root
                    # outside of autocast, as in training
                    with refusal_by_name(policy.causal_lm):
                        grads = _differentiate(root, parameters, of_layers, k + 1 < len(roots))
                    _add(total, grads, batch.counted, bool(policy.precision.rounding))
            del roots
    for total in totals:
        ranks.sum(x for x in total.values() if not is_sharded(x))
    return totals


def _add(total: Vector, grads: Vector, counted: bool, rounding: bool) -> None:
    """Add what a micro-batch gives to the sums."""
    for name, grad in grads.items():
        if counted or is_sharded(grad):  # a sharded one is a sum over processes
            sum_type = grad.dtype if rounding else torch.float64  # of .grad
            total[name] = (total[name].to(sum_type) + grad).double()


def _differentiate(root: Tensor, parameters: Vector, of_layers: Vector, more: bool) -> Vector:
    """The gradients of the parameters that are used; `more` backward passes follow."""
    unsharded = {n: p for n, p in parameters.items() if not is_sharded(p)}
    if len(unsharded) == len(parameters):
        grads = torch.autograd.grad(
            root, list(unsharded.values()), allow_unused=True, retain_graph=more
        )
        gradients = dict(zip(unsharded, grads, strict=True))
        return {n: g for n, g in gradients.items() if g is not None}  # pyright: ignore[reportUnnecessaryComparison] (allow_unused)
    try:
        torch.autograd.backward(root)
        gradients = {n: p.grad for n, p in unsharded.items()}
    finally:
        for parameter in unsharded.values():
            parameter.grad = None
    return of_layers | {n: g for n, g in gradients.items() if g is not None}


def _make_roots(
    policy: Policy, batch: MicroBatch, weights: Sequence[Weights], parameters: Vector
) -> list[Tensor]:
    """Scalars that have the gradients of the sums, most of which are not the sums themselves."""
    head: Any = policy.head
    trained = [p for p in head.parameters() if p.requires_grad]
    rounded = bool(policy.precision.rounding) and not any(map(is_sharded, trained))
    by_hand = type(head) is nn.Linear and all(rounded and p is head.weight for p in trained)
    roots: list[Tensor] = []
    if not by_hand:
        s, entropy = policy.packed_scores(batch, parameters)
        for a, b in weights:
            root = (a * s).sum()
            roots.append(root if b is None else root + (b * entropy).sum())
        return roots
    hidden = policy.packed_hidden(batch)
    for a, b in weights:
        of_weight = torch.zeros_like(head.weight) if trained else None
        by_hidden = hidden_gradient(
            hidden, head, batch.targets, a, b, policy.temperature, of_weight
        )
        root = (hidden * by_hidden).sum()
        # gradients by the weights are rounded as training's are
        roots.append(root if of_weight is None else root + (head.weight * of_weight).sum())
    return roots
