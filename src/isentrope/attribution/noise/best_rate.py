"""The best learning rate at other batch sizes, from the top of J's parabola and B_noise (T8).

    η_top(B) = η_max / (1 + B_noise/(mB)),     m = (1 + β₁)/(1 − β₁)

η_top(B) = −δJ₁/(2δJ₂) is measured along the step of a batch of B prompts, so η_max, that of a step
without noise, follows from it. m is the number of batches that momentum averages over (1 without
momentum). B_noise is tr(HΣ)/(GᵀHG); B_simple stands for it, which is exact where the curvature is
the same along noise and gradient (McCandlish et al., arXiv 1812.06162, eq. 2.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from isentrope.nouns.estimate import Estimate


@dataclass(frozen=True)
class Range:
    """A number, and its range over the intervals of what it is made of.

    Attributes:
        value: The number.
        low: Its smallest value over those intervals.
        high: Its largest.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BestRate:
    """The best rate as a function of the batch size.

    Attributes:
        top: η_top at the batch that was measured.
        noise: B_noise, prompts.
        prompts: B of that batch.
        averaged: m.
    """

    top: Estimate
    noise: Estimate
    prompts: float
    averaged: float

    @property
    def known(self) -> bool:
        """Whether both have an interval with two ends."""
        ends = (self.top.ci_low, self.top.ci_high, self.noise.ci_low, self.noise.ci_high)
        return all(map(math.isfinite, ends)) and self.noise.value > 0

    def at(self, prompts: float) -> Range:
        """η_top of a batch of another size.

        Args:
            prompts: Its prompts; infinite for η_max.

        Returns:
            The rate, with the range over both intervals.
        """

        def rate(top: float, noise: float) -> float:
            here, there = (1 + noise / (self.averaged * b) for b in (self.prompts, prompts))
            return top * here / there

        return self._over_both(rate)

    @property
    def lost(self) -> Range:
        """The part of η_max that the noise of the measured batch takes, between 0 and 1."""
        return self._over_both(lambda _, noise: noise / (noise + self.averaged * self.prompts))

    def _over_both(self, f: Callable[[float, float], float]) -> Range:
        tops = self.top.ci_low, self.top.ci_high
        noises = max(self.noise.ci_low, 0.0), self.noise.ci_high
        ends = [f(*pair) for pair in product(tops, noises)]  # monotonic in both
        return Range(f(self.top.value, self.noise.value), min(ends), max(ends))


def averaged_batches(groups: Sequence[Mapping[str, object]]) -> float | None:
    """How many batches momentum averages over, once a run is longer than that.

    Args:
        groups: Settings of the optimizer's param groups: `betas` or `momentum`.

    Returns:
        m; None where groups differ, or do not say.
    """
    betas = set()
    for group in groups:
        pair, momentum = group.get("betas"), group.get("momentum", 0.0)
        betas.add(pair[0] if isinstance(pair, (list, tuple)) and pair else momentum)
    beta = betas.pop() if len(betas) == 1 else None
    return (1 + beta) / (1 - beta) if isinstance(beta, (int, float)) and 0 <= beta < 1 else None
