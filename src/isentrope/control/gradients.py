"""Entropy gradients of a control's sample, by groups of its prompts.

    g = Σ_j g_j,     g_j = Σ_{i in group j} Σ_k (a_ik ∂s_ik + b_ik ∂H_ik)

a and b are the cotangents of the controlled entropy F on the whole sample, computed from the
entropies of its sampler. At the policy that drew the sample these are the entropies of the policy,
so it is not scored again. F is ℋ or h of all positions, or its part at a class of positions
(`estimators.positions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.control.budget_options import GROUPS_PER_SAMPLE
from isentrope.estimators.functional import Functionals
from isentrope.estimators.jackknife import Units, infinitesimal_jackknife
from isentrope.models.architecture import derivative_of_scores
from isentrope.nouns.choices import Functional
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import Weights, weighted_gradients
from isentrope.policy.language_model import Policy


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
        rollouts = self.rollouts.select(rows)
        inside = None if self.inside is None else self.inside[rows][:, : rollouts.mask.shape[1]]
        return ControlSample(rollouts, self.functional, inside)

    def _prepare(self) -> tuple[Functionals, Tensor, Tensor]:
        """F, (n, t) where its class is, and (n, t) H there."""
        mask = self.rollouts.mask
        inside = mask if self.inside is None else self.inside & mask
        f = Functionals(self.functional, "prefix", mask.double())
        return f, inside, self.rollouts.padded("sampler_entropies") * inside

    def entropy(self) -> tuple[float, float]:
        """F and its standard error over prompts, in the unit of F."""
        f, _, entropies = self._prepare()
        estimate = infinitesimal_jackknife(
            lambda omega: f(omega, entropies * 0, entropies)[None], self.rollouts.prompt_index
        )
        return float(estimate.values[0]), float(estimate.standard_errors[0])

    def cotangents(self) -> tuple[Tensor, Tensor]:
        """∂F/∂s and ∂F/∂H of every token, at the policy that drew the sample, each (n, t)."""
        f, inside, entropies = self._prepare()
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


def gradient_groups(
    policy: Policy, sample: ControlSample, number: int = GROUPS_PER_SAMPLE
) -> Vector:
    """g_F on a sample, as a sum over groups of its prompts.

    Args:
        policy: The policy that drew the sample.
        sample: E.
        number: K.

    Returns:
        (K, ...) by parameter name, float64, in the unit of F per unit of θ.
    """
    weights = [sample.cotangents()]
    with derivative_of_scores(policy.model):
        gradients = [
            gradients_of_rows(policy, sample.rollouts, rows, weights)[0]
            for rows in sample.groups(number)
        ]
    return {n: torch.stack([gradient[n] for gradient in gradients]) for n in policy.theta}


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
    selected = rollouts.select(rows)
    width = selected.mask.shape[1]
    cut = [(a[rows][:, :width], None if b is None else b[rows][:, :width]) for a, b in weights]
    return weighted_gradients(policy, selected, cut)


def slope_along(groups: Vector, direction: Vector) -> Tensor:
    """(K,) inner products of each group with a vector."""
    return torch.stack([x.flatten(1) @ direction[n].flatten() for n, x in groups.items()]).sum(0)
