"""The delete-a-group jackknife of a number that is computed anew without each group of prompts.

    φ_g = (1 − 1/G)(x̄ − x_{−g}),     SE² = G/(G − 1) Σ_g φ_g²

x_{−g} is the number without group g, and x̄ the mean of these. A value and its G replicates are one
tensor, (1 + G,): the number of all groups, then of all but each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.nouns.freedom import freedom_of_groups


@dataclass(frozen=True)
class DeletedGroups:
    """A number of all groups of prompts, and of all but each.

    Attributes:
        values: (1 + G,) float64.
    """

    values: Tensor

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], groups: int) -> "DeletedGroups":
        """Compute a number for all groups, and for all but each.

        Args:
            function: From (k,) indices of groups to a number.
            groups: G.

        Returns:
            The numbers.
        """
        return cls(without_each_group(function, groups))

    @property
    def value(self) -> float:
        """The number of all groups."""
        return float(self.values[0])

    @property
    def influences(self) -> Tensor:
        """(G,) φ."""
        deleted = self.values[1:]
        return (1 - 1 / len(deleted)) * (deleted.mean() - deleted)

    @property
    def variance(self) -> float:
        """The square of the standard error."""
        influences = self.influences
        return len(influences) / (len(influences) - 1) * float(influences.square().sum())

    @property
    def degrees_of_freedom(self) -> float:
        """Of the standard error."""
        return freedom_of_groups(self.influences)

    @property
    def errors_from_zero(self) -> float:
        """The number in units of its standard error; 0 where no group differs from another."""
        return self.value / self.variance**0.5 if self.variance else 0.0


def without_each_group(function: Callable[[Tensor], Tensor], groups: int) -> Tensor:
    """A quantity of all groups, then of all but each.

    Args:
        function: From (k,) indices of groups to a tensor.
        groups: G.

    Returns:
        (1 + G, ...) the tensors.
    """
    indices = torch.arange(groups)
    return torch.stack([function(indices), *(function(indices[indices != g]) for g in indices)])


def pairs_of_groups(products: Tensor, shares: Tensor) -> Tensor:
    """The product of two sums over groups by pairs of different groups, as if of all samples.

    A product of one group with itself holds the square of its noise, which is left out.

    Args:
        products: (..., G, G) of the groups.
        shares: (G,) share of all samples in each group.

    Returns:
        (...) Σ_{g≠g'} x_g y_g' / ((Σ w_g)² − Σ w_g²).
    """
    pairs = products.sum((-2, -1)) - products.diagonal(dim1=-2, dim2=-1).sum(-1)
    return pairs / (shares.sum().square() - shares.square().sum())
