"""The gradients of reward and entropy: their inner products and their angle (T10), (T14).

    <a, P b> ≈ Σ_{g≠g'} <a_g, P b_g'> / (1 − Σ_g w_g²),     w_g the share of the samples in g
    cos_P(g_J, g_H) = <g_J, P g_H> / √(<g_J, P g_J> <g_H, P g_H>)

Both gradients are sums over the same groups of prompts of E. Products are of pairs of different
groups, so that the noise of a gradient is not taken for its length. Products with parts of a step
are linear in them and need no pairs; the product y yᵀ of two of those does.

The angle says how far a step that earns reward must spend entropy. −1: every step along P g_J
spends as much as can be had; 0: reward has a price in entropy by chance only.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from isentrope.attribution.frontier.deleted_groups import (
    DeletedGroups,
    pairs_of_groups,
    without_each_group,
)
from isentrope.attribution.gradients.groups import GradientGroups, gradients_by_group, of_reward
from isentrope.attribution.gradients.storage_plan import StoragePlace
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, weighted_products
from isentrope.policy.language_model import Policy

_NO_LENGTH = (
    "The gradient of {} is not distinguishable from noise on this batch: it has no direction."
)


@dataclass(frozen=True)
class GradientPair:
    """g_J and g_H by groups of prompts, in the metric of a step.

    Numbers of the pair are of all G groups, then of all but each. J comes before H.

    Attributes:
        of_reward: g_J.
        of_entropy: g_H by the same groups.
        preconditioner: P, diagonal.
    """

    of_reward: GradientGroups
    of_entropy: GradientGroups
    preconditioner: Vector

    @classmethod
    def on_batch(
        cls,
        policy: Policy,
        E: Rollouts,
        sample: ScoredBatch,
        preconditioner: Vector,
        groups: int,
        where: StoragePlace = "device",
    ) -> Self:
        """Compute both gradients in one forward pass over a batch, with two backward passes.

        Args:
            policy: The policy at θ.
            E: An unfiltered batch with rewards.
            sample: The same batch, scored.
            preconditioner: P.
            groups: Groups of E's prompts, in which both are held.
            where: Where they are held.

        Returns:
            The gradients.

        Raises:
            ValueError: If E has no rewards, or fewer prompts than groups.
        """
        samples = [sample, of_reward(sample, E.rewards)]
        of_entropy, reward = gradients_by_group(policy, E, samples, groups, where)
        return cls(reward, of_entropy, preconditioner)

    @property
    def shares(self) -> Tensor:
        """(G,) share of the samples in each group."""
        return self.of_entropy.shares

    @property
    def same_groups(self) -> bool:
        """Whether both gradients are by the same groups."""
        return torch.equal(self.shares, self.of_reward.shares)

    @cached_property
    def gram(self) -> Tensor:
        """(1 + G, 2, 2) inner products of the gradients in the metric P."""
        count = len(self.shares)
        inner = torch.zeros(2 * count, 2 * count, dtype=torch.float64)
        for name, P in self.preconditioner.items():  # one parameter at a time: all are large
            rows = [self.of_reward.parts.rows(name), self.of_entropy.parts.rows(name)]
            inner += weighted_products(rows, P)
        return self._pairs(inner.view(2, count, 2, count).transpose(1, 2))

    def along(self, part: Vector) -> Tensor:
        """(2, G) inner products of both gradients, by groups, with a part of a step."""
        return torch.stack([self.of_reward.along(part), self.of_entropy.along(part)])

    def changes(self, along: Tensor) -> Tensor:
        """(1 + G, 2) y of a part of a step.

        Args:
            along: (2, G) `along` of it.

        Returns:
            The changes of J and of H.
        """
        shares = self.shares
        return without_each_group(lambda k: along[:, k].sum(1) / shares[k].sum(), len(shares))

    def squares(self, along: Tensor) -> Tensor:
        """(1 + G, 2, 2) y yᵀ of a part of a step.

        Args:
            along: (2, G) `along` of it.

        Returns:
            The products of the changes of J and of H.
        """
        return self._pairs(along[:, None, :, None] * along[None, :, None, :])

    def _pairs(self, products: Tensor) -> Tensor:
        """(1 + G, ...) by pairs of different groups, from (..., G, G) products of the groups."""
        shares = self.shares
        return without_each_group(
            lambda k: pairs_of_groups(products[..., k, :][..., k], shares[k]), len(shares)
        )


def alignment(gradients: GradientPair, confidence: float = 0.95) -> Estimate:
    """cos_P of the gradients of expected reward and of entropy, with a jackknife error.

    Args:
        gradients: g_J and g_H by groups of prompts, with P.
        confidence: Nominal coverage.

    Returns:
        The cosine; NaN where a gradient is not distinguishable from noise.

    Raises:
        ValueError: If the groups differ, or there are fewer than three.
    """
    if len(gradients.shares) < 3 or not gradients.same_groups:
        raise ValueError("The angle needs both gradients by the same groups, three or more.")
    gram = gradients.gram
    lengths = gram.diagonal(dim1=1, dim2=2)  # (1 + G, 2): <g_J, P g_J> and <g_H, P g_H>
    # a length that noise makes negative has no root, and the cosine none
    cosine = DeletedGroups(gram[:, 0, 1] / lengths.where(lengths > 0, math.nan).prod(1).sqrt())
    noisy = [name for name, x in zip(("reward", "entropy"), lengths.T, strict=True) if x.min() <= 0]
    sides = (gradients.of_reward, gradients.of_entropy)
    trusted = all(side.sample.trust.verdict == "trust" for side in sides)
    return Estimate.from_standard_error(
        cosine.value,
        math.sqrt(cosine.variance),
        gradients.of_entropy.prompts,
        unit="cosine",
        method="delete-a-group jackknife",
        confidence=confidence,
        warnings=tuple(_NO_LENGTH.format(name) for name in noisy),
        trusted=trusted and not noisy,
        degrees_of_freedom=len(gradients.shares) - 1 if noisy else cosine.degrees_of_freedom,
    )
