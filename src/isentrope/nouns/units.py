"""The independent units behind the samples of a batch, such as prompt draws, and sums over each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Units:
    """Units, numbered from 0 in the order of their labels.

    Attributes:
        place: (n,) int64, the unit of each sample.
        count: P, their number.
    """

    place: Tensor
    count: int

    @classmethod
    def of(cls, labels: Tensor) -> Units:
        """Number the units.

        Args:
            labels: (n,) equal for the samples of a unit.

        Returns:
            The units.
        """
        units, place = labels.unique(return_inverse=True)
        return cls(place, len(units))

    @property
    def sizes(self) -> Tensor:
        """(P,) int64, the samples of each unit."""
        return self.place.bincount(minlength=self.count)

    def sums(self, values: Tensor) -> Tensor:
        """Sums over the samples of each unit.

        Args:
            values: (..., n).

        Returns:
            (..., P) float64.
        """
        zeros = torch.zeros(*values.shape[:-1], self.count, dtype=torch.float64)
        return zeros.index_add_(-1, self.place, values.double())
