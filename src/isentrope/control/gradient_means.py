"""Exponential means of the entropy gradients of a run, one per half of each step's sample.

    m_t = (1 − α_t) m_{t−1} + α_t g_t,     α_t = (1/N) / (1 − (1 − 1/N)^t)

With this α_t, m_t is the weighted mean of all g so far with weights (1 − 1/N)^age; N = 1 keeps the
last g alone. The noise of the two halves is independent, so products across them are unbiased.
"""

from __future__ import annotations

from torch import Tensor

from isentrope.nouns.vectors import Vector

Halves = tuple[Vector, Vector]
"""Entropy gradients of two independent samples: whole, or (K, ...) by groups of sequences."""


class GradientMeans:
    """The means of both halves over readings.

    Attributes:
        share: α of the last reading.
        tensors: m of each half, by `half/parameter`, halves a and b.
    """

    def __init__(self, window: int = 1) -> None:
        """Start empty.

        Args:
            window: N, in readings.
        """
        self._decay = 1 - 1 / window
        self.share = 1.0
        self.tensors: dict[str, Tensor] = {}

    def add(self, groups: Halves, count: int = 1) -> None:
        """Add the gradients of a reading.

        Args:
            groups: (K, ...) by groups, whose sum over K is g.
            count: t, its number from 1.
        """
        self.share = (1 - self._decay) / (1 - self._decay**count)
        for half, gradients in zip("ab", groups, strict=True):
            for name, x in gradients.items():
                past = (1 - self.share) * self.tensors.get(f"{half}/{name}", 0.0)
                self.tensors[f"{half}/{name}"] = self.share * x.sum(0) + past

    def conditioned(self, P: Vector) -> Halves:
        """P m of each half, of which u is the mean."""
        u_a, u_b = ({n: x * self.tensors[f"{half}/{n}"] for n, x in P.items()} for half in "ab")
        return u_a, u_b


def mean_of(halves: Halves) -> Vector:
    """The mean of both halves."""
    return {n: (x + halves[1][n]) / 2 for n, x in halves[0].items()}
