"""What a step does to entropy to first order, from the responses that it was computed from.

    <g_H, v>,     v = m + P Σ_l g_U^l,     g_H ≈ Σ_k g_E^k,     k, l: prompts

The same responses make g_E^k and g_U^k, so <g_E, P g_U> also holds what their noise has in common:
<g_E^k, P g_U^k> has another expectation than <g_E^k, P g_U^l> of two prompts. Each prompt is
therefore left out of the step that it is compared with:

    <g_H, v> ≈ <g_E, m> + (<g_E, P g_U> − Σ_j <g_E^j, P g_U^j>) · n_E n_U / (n_E n_U − Σ_j e_j u_j)

j are groups of whole prompts with e_j of the n_E responses of E and u_j of the n_U of U; draws of
one prompt are left out together, which for few different prompts omits what they have in common. m,
the parts of v that earlier batches made, is independent of E given θ. P has second moments of this
gradient too, with a share of 1 − β₂.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.control.gradients import ControlSample, gradients_of_rows, slope_along
from isentrope.estimators.jackknife import Units
from isentrope.models.architecture import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, dot, multiply
from isentrope.parallel.ranks import sum_over_processes
from isentrope.policy.language_model import Policy
from isentrope.probe.coming_step import ComingStep
from isentrope.system.processes import rank, together, world_size

GROUPS_PER_HALF = 2
"""Groups of prompts per half and step of a run: their errors are filtered over steps."""


def read_half(
    policy: Policy, sample: ControlSample, coming: ComingStep, clip: float, trained: int
) -> tuple[Vector, Tensor]:
    """Compare a half of E with the coming step; every process must call this.

    Args:
        policy: The live policy.
        sample: The half, with the weights of its responses in the loss.
        coming: The step.
        clip: What clipping multiplied the gradient by.
        trained: n_U, responses of the step to prompts that are in the loss.

    Returns:
        (K, ...) g_E by groups of prompts, and (K,) their parts of <g_H, v>, each without its own
        part of the step; the same on every process.
    """
    E = sample.rollouts
    groups = sample.groups(GROUPS_PER_HALF)
    a, b = sample.cotangents()
    entropy = a * (len(E) / (len(E) - 1)), b  # the mean that a subtracts holds the response's own
    d = None if E.entropy_weights is None else E.padded("entropy_weights")
    loss = E.padded("token_weights"), d

    def compute_share() -> tuple[Vector, Tensor]:
        """(K, ...) g_E^j and (K,) <g_E^j, P g_U^j>, 0 of groups that another process computes."""
        gradients = {
            n: x.new_zeros(len(groups), *x.shape, dtype=torch.float64)
            for n, x in policy.theta.items()
        }
        within = torch.zeros(len(groups), dtype=torch.float64, device=policy.device)
        with derivative_of_scores(policy.model):
            for j in range(rank(), len(groups), world_size()):
                g_E, g_U = gradients_of_rows(policy, E, groups[j], [entropy, loss])
                for n, x in g_E.items():
                    gradients[n][j] = x
                within[j] = clip * dot(g_E, multiply(coming.preconditioner, g_U))
        return gradients, within

    gradients, within = together(compute_share)
    sum_over_processes((*gradients.values(), within))
    parts = coming.components
    along_past = slope_along(gradients, axpy(1.0, parts["momentum"], parts["decay"]))
    along_gradient = slope_along(gradients, parts["gradient"])
    has_weight = in_the_loss(E)
    pairs = len(E) * trained  # n_E n_U
    pairs_within = sum(len(rows) * int(has_weight[rows].sum()) for rows in groups)
    factor = pairs / (pairs - pairs_within) if pairs > pairs_within else 0.0
    return gradients, along_past + factor * (along_gradient - within)


def in_the_loss(E: Rollouts) -> Tensor:
    """(n,) bool, the responses to prompts of which any token has a weight in the loss."""
    weights = E.padded("token_weights").abs().sum(1)
    if E.entropy_weights is not None:
        weights += E.padded("entropy_weights").abs().sum(1)
    units = Units.of(E.prompt_index)
    return (units.sums(weights) > 0)[units.place]
