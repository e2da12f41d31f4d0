"""Standard errors by the infinitesimal jackknife over prompts (T11).

    SE² = P/(P−1) Σ_p ( φ_p − φ̄ )²,     φ_p = Σ_{i∈p} ω_i ∂F/∂ω_i

Every estimator is a function F(ω) of its sample weights, so one reverse-mode derivative gives the
influence of every sample, for values, derivatives, ratios and differences alike. The units are
prompt draws: responses of one group are not independent of each other.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isentrope.nouns.estimate import ROUNDING_SHARE, Estimate


@dataclass(frozen=True)
class Units:
    """The independent units behind samples, such as prompt draws, in the order of their labels.

    Attributes:
        place: (n,) int64, the unit of each sample, numbered from 0.
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


@dataclass(frozen=True)
class Jackknifed:
    """A vector of statistics of one sample, with their joint error.

    Attributes:
        values: (m,) the statistics at ω = 1/n.
        influences: (m, P) φ − φ̄, the influence of each unit on each statistic.
        n_units: P.
    """

    values: Tensor
    influences: Tensor
    n_units: int

    @property
    def covariance(self) -> Tensor:
        """(m, m) joint covariance of the statistics; NaN with a single unit."""
        scale = self.n_units / (self.n_units - 1) if self.n_units > 1 else math.nan
        return scale * self.influences @ self.influences.T

    @property
    def standard_errors(self) -> Tensor:
        """(m,) standard errors; NaN with a single unit."""
        return self.covariance.diagonal().sqrt()

    def estimate(self, row: int, **options: Any) -> Estimate:
        """One of the statistics with its interval.

        Args:
            row: Its row.
            **options: Of `Estimate.from_influences`.

        Returns:
            The estimate.
        """
        return Estimate.from_influences(float(self.values[row]), self.influences[row], **options)

    def less(self, row: int) -> Jackknifed:
        """Every statistic less one of them, without what rounding alone leaves.

        Args:
            row: Row of that one.

        Returns:
            The differences; exactly 0 where two statistics are the same number.
        """
        floor = ROUNDING_SHARE * float(self.values.abs().max())
        parts = (self.values - self.values[row], self.influences - self.influences[row])
        values, influences = (torch.where(x.abs() > floor, x, 0.0) for x in parts)
        return replace(self, values=values, influences=influences)


def infinitesimal_jackknife(
    statistics: Callable[[Tensor], Tensor], prompt_index: Tensor
) -> Jackknifed:
    """Evaluate statistics F(ω) at equal weights, and the influence of every prompt on them.

    Args:
        statistics: Maps (n,) float64 weights to an (m,) vector, differentiably; homogeneous of
            degree 0 in the weights.
        prompt_index: (n,) which prompt draw each sample belongs to.

    Returns:
        Values and influences by unit.
    """
    units = Units.of(prompt_index)
    omega = torch.full((len(prompt_index),), 1.0 / len(prompt_index), dtype=torch.float64)

    def twice(omega: Tensor) -> tuple[Tensor, Tensor]:
        values = statistics(omega)
        return values, values

    jacobian, values = torch.func.jacrev(twice, has_aux=True)(omega)
    by_sample = jacobian * omega  # (m, n) φ_i = ω_i ∂F/∂ω_i (T11)
    by_unit = units.sums(by_sample.detach())  # (m, P)
    # F is of degree 0 in ω, so they sum to zero but for rounding (Euler)
    by_unit -= by_unit.mean(1, keepdim=True)
    return Jackknifed(values.detach(), by_unit, units.count)
