"""The values of a proxy or of an influence: their signs, their ranks and the top of them.

Values are equal, or have no sign, where they differ from each other, or from 0, by rounding alone
(`attribution.mid_ranks`). Items tied with the last one of a top are in it by equal shares.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isentrope.attribution.mid_ranks import Array, WeightedRanks, resolution, signs


class ScoreColumn:
    """Values, their sizes and both orders.

    Attributes:
        values: (n,) float64.
        sizes: (n,) |values|.
        signs: (n,) −1, 0 or 1.
        squares: (n,) squares around the mean.
        signed: Whether the sign has a meaning.
        varies: Whether the values differ by more than rounding.
    """

    def __init__(self, values: Array, signed: bool = True) -> None:
        """Sort values and sizes.

        Args:
            values: (n,) float64.
            signed: Whether the sign has a meaning.
        """
        self.values = values
        self.signed = signed
        self.sizes = np.abs(values)
        self.signs = signs(values)
        self.varies = bool((np.ptp(values) > resolution(values)).any())
        self.squares = np.square(values - values.mean())
        self._ascending = WeightedRanks(values)
        self._by_size = WeightedRanks(-self.sizes)

    @classmethod
    def of(cls, name: str, values: Tensor, mask: Tensor, signed: bool = True) -> ScoreColumn:
        """The values of the tokens of a batch.

        Args:
            name: Of the values, for errors.
            values: (n, t).
            mask: (n, t) bool.
            signed: Whether the sign has a meaning.

        Returns:
            A column of as many items as tokens.

        Raises:
            ValueError: If shapes differ, or a value is not finite.
        """
        values = torch.as_tensor(values, dtype=torch.float64)
        if values.shape != mask.shape:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)} where the mask has {tuple(mask.shape)}."
            )
        items = values[mask]
        if not bool(items.isfinite().all()):
            raise ValueError(f"{int((~items.isfinite()).sum())} values of {name} are not finite.")
        return cls(items.numpy(), signed)

    def weighted(self, weights: Array, counts: Collection[int]) -> WeightedColumn:
        """The column under weights.

        Args:
            weights: (n,) how often each item counts.
            counts: Sizes k of the tops.

        Returns:
            Ranks and tops.
        """
        mid_ranks, lowest = self._ascending.under(weights, counts)
        size_ranks, largest = self._by_size.under(weights, counts)
        return WeightedColumn(self, mid_ranks, size_ranks, lowest, largest)


@dataclass(frozen=True)
class WeightedColumn:
    """Ranks and tops of a column under weights.

    Attributes:
        column: The column.
        mid_ranks: (n,) mid-ranks of the values.
        size_ranks: (n,) mid-ranks of −|values|.
        lowest: Share of each item in the k most negative, (n,) for each k.
        largest: Share of each item in the k largest by size, (n,) for each k.
    """

    column: ScoreColumn
    mid_ranks: Array
    size_ranks: Array
    lowest: list[Array]
    largest: list[Array]
