"""Columns of a batch that need a pass of the model: the mass that min-p keeps, and influences.

    kept_mass    M_ik = Σ_a π_a 1{π_a ≥ m max π}, 0 where the token itself is below
    influence    δH_ik = c_ik ∂_u s_ik,   u = P g_H,   g_H = ∂h estimated on E

`attribution.influence` gives the last with errors. Processes share the passes as the policy says
(`Policy.share_work`), and each has the result. E must be drawn apart from the update batch.
"""

from typing import Any

import torch
from torch import Tensor

from isentrope.estimators.entropy import entropy_gradient
from isentrope.models.architecture import DerivativeOfTraining
from isentrope.models.batching import MicroBatch
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.nouns.vectors import Vector, multiply
from isentrope.policy.gradient import score_jvp
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect_columns
from isentrope.policy.token_statistics import rows_held
from isentrope.probe.scoring import draw_share
from isentrope.sampling.streams import generator_of
from isentrope.system.processes import gather

_STREAM = 17
"""Number of the stream of random numbers, different from the probe's."""


def kept_mass(policy: Policy, rollouts: Rollouts, min_p: float) -> Tensor:
    """The mass that a min-p filter keeps at every token.

    Args:
        policy: The policy that drew the rollouts, without dropout.
        rollouts: n sequences, the same on every process.
        min_p: Least probability of a kept token, as a share of the largest.

    Returns:
        (n, t) float64, 0 where the filter does not keep the token itself or there is none.
    """
    rows = rows_held(policy.vocabulary, policy.device)

    def packed(batch: MicroBatch) -> list[Tensor]:
        hidden = policy.packed_hidden(batch)
        masses: list[Tensor] = []
        with policy.precision.active():
            for h, target in zip(hidden.split(rows), batch.targets.split(rows), strict=True):
                p = (policy.head(h).double() / policy.temperature).softmax(-1)
                is_kept = p >= min_p * p.amax(-1, keepdim=True)
                target_kept = is_kept.gather(1, target[:, None])[:, 0]
                masses.append((p * is_kept).sum(-1) * target_kept)
        return [torch.cat(masses)]

    with torch.no_grad():
        return collect_columns(policy, rollouts, packed)[0]


def token_influence(policy: Policy, E: Rollouts, U: Rollouts, weights: Tensor, P: Vector) -> Tensor:
    """δH of every token of a batch.

    Args:
        policy: The policy at the θ of the step, without dropout.
        E: The whole evaluation batch, drawn apart from U.
        U: The whole update batch.
        weights: (n, t) c of U.
        P: The preconditioner of the step that the optimizer would take on U.

    Returns:
        (n, t) float64, per unit of the learning rate.
    """
    u = multiply(P, entropy_gradient(policy, E))
    with DerivativeOfTraining():
        _, slope = score_jvp(policy, U, [u], entropies=False)
    return weights * slope.logprobs


def draw_held_out(policy: Policy, step: int, *, seed: int, **plan: Any) -> Rollouts:
    """Draw a control's own evaluation batch; every process must call this.

    Args:
        policy: The policy at the θ of the step, without dropout.
        step: The step, from 1.
        seed: Fixes prompts and tokens of every batch, together with the step.
        **plan: As for `draw_share`: the held-out prompts and how many responses are drawn.

    Returns:
        The whole batch, the same on every process.
    """
    generator = generator_of(seed, step, 0, _STREAM)
    return concatenate(gather(draw_share(policy, **plan, generator=generator)))
