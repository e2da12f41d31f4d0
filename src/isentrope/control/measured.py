"""Columns of a batch that need a pass of the model: the mass that min-p keeps, and influences.

    kept_mass    M_ik = Σ_a π_a 1{π_a ≥ m max π}, 0 where the token itself is below
    influence    δH_ik = c_ik ∂_u s_ik,   u = P g_H,   g_H = ∂h estimated on E

`attribution.influence` gives the last with errors. Processes share the passes as `Policy.ranks`
says, and each has the result. E must be drawn apart from the update batch.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.entropy import entropy_gradient
from isentrope.models.batching import MicroBatch
from isentrope.models.embeddings import DerivativeOfTraining
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.nouns.vectors import Vector, multiply, norm
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect_columns
from isentrope.policy.scoring_batches import smaller_where_memory_is_short
from isentrope.policy.token_statistics import rows_held
from isentrope.probe.scoring import draw_share
from isentrope.sampling.prompts import PromptLike
from isentrope.sampling.streams import generator_of
from isentrope.system.processes import all_ranks, gather
from isentrope.update.optimizer_state import OptimizerLike, load_optimizer_state
from isentrope.update.step import clip_factor, follow_rule


@contextmanager
def shared_passes(policy: Policy) -> Generator[None]:
    """A block in which all processes share the passes of a policy; all must enter it.

    Args:
        policy: A policy whose passes are each process's own outside of the block.
    """
    own = policy.ranks
    policy.ranks = all_ranks()
    try:
        yield
    finally:
        policy.ranks = own


@smaller_where_memory_is_short
def kept_mass(policy: Policy, rollouts: Rollouts, min_p: float) -> Tensor:
    """The mass that a min-p filter keeps at every token.

    Args:
        policy: The policy that drew the rollouts, without dropout.
        rollouts: n sequences, the same on every process.
        min_p: Least probability of a kept token, as a share of the largest.

    Returns:
        (n, t) float64, 0 where the filter does not keep the token itself or there is none.
    """
    rows = rows_held(policy.vocabulary)

    def packed(batch: MicroBatch) -> list[Tensor]:
        hidden, parts = policy.packed_hidden(batch), list[Tensor]()
        with policy.precision.active():
            for h, target in zip(hidden.split(rows), batch.targets.split(rows), strict=True):
                p = (policy.head(h).double() / policy.temperature).softmax(-1)
                keep = p >= min_p * p.amax(-1, keepdim=True)
                own = keep.gather(1, target[:, None])[:, 0]
                parts.append((p * keep).sum(-1) * own)
        return [torch.cat(parts)]

    with torch.no_grad():
        return collect_columns(policy, rollouts, packed)[0]


def preconditioner(
    policy: Policy,
    U: Rollouts,
    weights: Tensor,
    optimizer: OptimizerLike,
    max_grad_norm: float | None,
) -> Vector:
    """P of the step that the optimizer would take on a batch.

    Args:
        policy: The policy at the θ of the step.
        U: The whole update batch.
        weights: (n, t) c.
        optimizer: Its state before the step; it is not changed.
        max_grad_norm: Norm to which the gradient is clipped; None for no clipping.

    Returns:
        P by parameter name.

    Raises:
        ValueError: If the gradient is not finite.
    """
    loss_gradient = weighted_gradient(policy, U, -weights)
    state = load_optimizer_state(policy, optimizer)
    clip = clip_factor(norm(loss_gradient), max_grad_norm)
    return follow_rule(policy, state, loss_gradient, clip)[1]


def token_influence(policy: Policy, E: Rollouts, U: Rollouts, weights: Tensor, P: Vector) -> Tensor:
    """δH of every token of a batch.

    Args:
        policy: The policy at the θ of the step, without dropout.
        E: The whole evaluation batch, drawn apart from U.
        U: The whole update batch.
        weights: (n, t) c of U.
        P: The preconditioner, from `preconditioner`.

    Returns:
        (n, t) float64, per unit of the learning rate.
    """
    u = multiply(P, entropy_gradient(policy, E))
    with DerivativeOfTraining():
        _, slope = score_jvp(policy, U, [u], entropies=False)
    return weights * slope.logprobs


@dataclass(frozen=True)
class HeldOutSample:
    """Source of a control's own evaluation batches.

    Attributes:
        prompts: Held-out prompts.
        size: Number of sequences per batch, one response per prompt draw.
        max_new_tokens: Longest response in tokens.
        seed: Fixes prompts and tokens of every batch, together with the step.
        batch_size: Sequences sampled at a time on this process.
        stream: Number of the stream of random numbers, different from the probe's.
    """

    prompts: Sequence[PromptLike]
    size: int
    max_new_tokens: int
    seed: int
    batch_size: int = 64
    stream: int = 17

    def draw(self, policy: Policy, step: int) -> Rollouts:
        """Draw the batch of a step; every process must call this.

        Args:
            policy: The policy at the θ of the step, without dropout.
            step: The step, from 1.

        Returns:
            The whole batch, the same on every process.
        """
        generator = generator_of(self.seed, step, 0, self.stream)
        plan = self.prompts, self.size, self.max_new_tokens, generator, self.batch_size
        return concatenate(gather(draw_share(policy, *plan)))
