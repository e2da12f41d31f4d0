"""Inner products of the gradients of reward and entropy, without the square of their noise (T14).

    <a, P b> ≈ Σ_{g≠g'} <a_g, P b_g'> / (1 − Σ_g w_g²),     w_g the share of the samples in g

Both gradients are sums over the same groups of prompts of E. Products with parts of a step are
linear in them and need no pairs; the product y yᵀ of two of those does.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isentrope.attribution.frontier.deleted_groups import pairs_of_groups, without_each_group
from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.nouns.vectors import Vector, weighted_products


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
