"""Entropy gradients of a control's sample, by groups of its prompts.

    g = Σ_j g_j,     g_j = Σ_{i in group j} Σ_k (a_ik ∂s_ik + b_ik ∂H_ik)

a and b are the cotangents of the controlled entropy F on the whole sample, computed from the
entropies of its sampler. At the policy that drew the sample these are the entropies of the policy,
so it is not scored again. F is ℋ or h of all positions, or its part at a class of positions
(`estimators.positions`).

What a step does to entropy to first order, from the very responses it was computed from.

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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.estimators.functional import Functional, Functionals
from isentrope.estimators.jackknife import Units, infinitesimal_jackknife
from isentrope.models.architecture import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, dot, multiply
from isentrope.parallel.ranks import sum_over_processes
from isentrope.policy.gradient import Weights, weighted_gradients
from isentrope.policy.language_model import Policy
from isentrope.probe.coming_step import ComingStep
from isentrope.system.processes import rank, together, world_size

GROUPS = 4
"""Groups of prompts per sample of a single correction, over which errors are computed."""
GROUPS_OF_A_HALF = 2
"""Groups of prompts per half and step of a run: their errors are filtered over steps."""


@dataclass(frozen=True)
class ControlSample:
    """The E of a control.

    Attributes:
        rollouts: Unfiltered responses, with the entropies of their sampler.
        functional: "per_sequence" (ℋ) or "per_token" (h).
        inside: (n, t) bool, the class of positions that counts; None for all.
    """

    rollouts: Rollouts
    functional: Functional = "per_token"
    inside: Tensor | None = None

    def __post_init__(self) -> None:
        if self.rollouts.sampler_entropies is None:
            raise ValueError("A control of entropy needs an E with the entropies of its sampler.")

    def select(self, rows: Tensor) -> ControlSample:
        """Some of the sequences.

        Args:
            rows: Their rows.

        Returns:
            The sample of these alone.
        """
        part = self.rollouts.select(rows)
        inside = None if self.inside is None else self.inside[rows][:, : part.mask.shape[1]]
        return ControlSample(part, self.functional, inside)

    def _arrays(self) -> tuple[Functionals, Tensor, Tensor]:
        """F, (n, t) where its class is, and (n, t) H there."""
        mask = self.rollouts.mask
        inside = mask if self.inside is None else self.inside & mask
        f = Functionals(self.functional, "prefix", mask.double())
        return f, inside, self.rollouts.padded("sampler_entropies") * inside

    def entropy(self) -> tuple[float, float]:
        """F and its standard error over prompts, in the unit of F."""
        f, _, entropies = self._arrays()
        found = infinitesimal_jackknife(
            lambda omega: f(omega, entropies * 0, entropies)[None], self.rollouts.prompt_index
        )
        return float(found.values[0]), float(found.standard_errors[0])

    def cotangents(self) -> tuple[Tensor, Tensor]:
        """∂F/∂s and ∂F/∂H of every token, at the policy that drew the sample, each (n, t)."""
        f, inside, entropies = self._arrays()
        omega = torch.ones(len(entropies), dtype=torch.float64)
        a, b = torch.func.grad(f, argnums=(1, 2))(omega, torch.zeros_like(entropies), entropies)
        return a, b * inside

    def groups(self, number: int, order: Tensor | None = None) -> list[Tensor]:
        """Rows of groups of whole prompts, as many as asked for or as there are prompts.

        Args:
            number: Of groups.
            order: Prompts by number, which are shared out; None for all.

        Returns:
            The rows of each group.
        """
        units = Units.of(self.rollouts.prompt_index)
        order = torch.arange(units.count) if order is None else order
        parts = order.tensor_split(min(number, len(order)))
        return [torch.isin(units.place, part).nonzero()[:, 0] for part in parts]


def gradient_groups(policy: Policy, sample: ControlSample, number: int = GROUPS) -> Vector:
    """g_F on a sample, as a sum over groups of its prompts.

    Args:
        policy: The policy that drew the sample.
        sample: E.
        number: K.

    Returns:
        (K, ...) by parameter name, float64, in the unit of F per unit of θ.
    """
    E, weights = sample.rollouts, [sample.cotangents()]
    with derivative_of_scores(policy.model):
        parts = [gradients_of_rows(policy, E, rows, weights)[0] for rows in sample.groups(number)]
    return {n: torch.stack([part[n] for part in parts]) for n in policy.theta}


def gradients_of_rows(
    policy: Policy, rollouts: Rollouts, rows: Tensor, weights: Sequence[Weights]
) -> list[Vector]:
    """Σ over some rows of a ∂s + b ∂H, of each pair of weights.

    Args:
        policy: The policy.
        rollouts: n sequences.
        rows: Which of them.
        weights: (n, t) a and b of each sum.

    Returns:
        The gradients by parameter name, float64.
    """
    part = rollouts.select(rows)
    width = part.mask.shape[1]
    cut = [(a[rows][:, :width], None if b is None else b[rows][:, :width]) for a, b in weights]
    return weighted_gradients(policy, part, cut)


def slope_along(groups: Vector, direction: Vector) -> Tensor:
    """(K,) inner products of each group with a vector."""
    return torch.stack([x.flatten(1) @ direction[n].flatten() for n, x in groups.items()]).sum(0)


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
    E, groups = sample.rollouts, sample.groups(GROUPS_OF_A_HALF)
    a, b = sample.cotangents()
    entropy = a * (len(E) / (len(E) - 1)), b  # the mean that a subtracts holds the response's own
    d = None if E.entropy_weights is None else E.padded("entropy_weights")
    loss, has = (E.padded("token_weights"), d), in_the_loss(E)

    def of_this_process() -> tuple[Vector, Tensor]:
        """(K, ...) g_E^j and (K,) <g_E^j, P g_U^j>, 0 of groups that another one computes."""
        found = {
            n: x.new_zeros(len(groups), *x.shape, dtype=torch.float64)
            for n, x in policy.theta.items()
        }
        own = torch.zeros(len(groups), dtype=torch.float64, device=policy.device)
        with derivative_of_scores(policy.model):
            for j in range(rank(), len(groups), world_size()):
                g_E, g_U = gradients_of_rows(policy, E, groups[j], [entropy, loss])
                for n, x in g_E.items():
                    found[n][j] = x
                own[j] = clip * dot(g_E, multiply(coming.preconditioner, g_U))
        return found, own

    gradients, own = together(of_this_process)
    sum_over_processes((*gradients.values(), own))
    parts = coming.components
    before = slope_along(gradients, axpy(1.0, parts["momentum"], parts["decay"]))
    at_once = slope_along(gradients, parts["gradient"])
    pairs = len(E) * trained  # n_E n_U, and those of them within a group
    shared = sum(len(rows) * int(has[rows].sum()) for rows in groups)
    factor = pairs / (pairs - shared) if pairs > shared else 0.0
    return gradients, before + factor * (at_once - own)


def in_the_loss(E: Rollouts) -> Tensor:
    """(n,) bool, the responses to prompts of which any token has a weight in the loss."""
    weights = E.padded("token_weights").abs().sum(1)
    if E.entropy_weights is not None:
        weights += E.padded("entropy_weights").abs().sum(1)
    units = Units.of(E.prompt_index)
    return (units.sums(weights) > 0)[units.place]
