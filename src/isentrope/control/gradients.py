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

from isentrope.estimators.entropy import cotangents_of_arrays
from isentrope.estimators.functional import Functional, Functionals
from isentrope.estimators.jackknife import infinitesimal_jackknife
from isentrope.models.embeddings import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.units import Units
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import Weights, weighted_gradients
from isentrope.policy.language_model import Policy

GROUPS = 4
"""Groups of prompts per sample of a single correction, over which errors are computed."""


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
        E = self.rollouts
        inside = E.mask if self.inside is None else self.inside & E.mask
        f = Functionals(self.functional, "prefix", E.mask.double())
        return f, inside, E.padded("sampler_entropies").double() * inside

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
        a, b = cotangents_of_arrays(f, torch.zeros_like(entropies), entropies)
        return a, b * inside

    def groups(self, number: int) -> Sequence[Tensor]:
        """Rows of groups of whole prompts, as many as asked for or as there are prompts."""
        units = Units.of(self.rollouts.prompt_index)
        parts = torch.arange(units.count).tensor_split(min(number, units.count))
        return [torch.isin(units.place, part).nonzero()[:, 0] for part in parts]


def gradient_groups(
    policy: Policy, sample: ControlSample, groups: Sequence[Tensor] | None = None
) -> Vector:
    """g_F on a sample, as a sum over groups of its prompts.

    Args:
        policy: The policy that drew the sample.
        sample: E.
        groups: K groups of rows; None for those of the sample.

    Returns:
        (K, ...) by parameter name, float64, in the unit of F per unit of θ.
    """
    splits = sample.groups(GROUPS) if groups is None else groups
    weights = sample.cotangents()
    with derivative_of_scores(policy.model):
        parts = [gradients_of_rows(policy, sample.rollouts, rows, [weights])[0] for rows in splits]
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


def summed(groups: Vector) -> Vector:
    """The sum over groups, (...) by name."""
    return {n: x.sum(0) for n, x in groups.items()}


def slope_along(groups: Vector, direction: Vector) -> Tensor:
    """(K,) inner products of each group with a vector."""
    return torch.stack([x.flatten(1) @ direction[n].flatten() for n, x in groups.items()]).sum(0)
