"""Exponential means of entropy gradients over the steps of a run.

    m_t = (1 − α_t) m_{t−1} + α_t g_t,     α_t = (1/N) / (1 − (1 − 1/N)^t)

With this α_t, m_t is the weighted mean of all g so far with weights (1 − 1/N)^age; N = 1 keeps the
last g alone. The halves a and b of E have one mean each, so the noise of the two means is
independent and products across them are unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from isentrope.control.correction import Halves
from isentrope.control.gradients import summed
from isentrope.nouns.vectors import Vector


class BlockMean:
    """A mean of vectors with exponential weights.

    Attributes:
        value: The mean; None before the first vector.
        count: Number of vectors added.
    """

    def __init__(self, window: float) -> None:
        """Start empty.

        Args:
            window: N, in vectors; 1 keeps the last vector alone.
        """
        self._window = window
        self.value: Vector | None = None
        self.count = 0

    @property
    def share(self) -> float:
        """α of the next vector."""
        decay = 1 - 1 / self._window
        return (1 - decay) / (1 - decay ** (self.count + 1))

    def add(self, vector: Vector) -> None:
        """Add a vector."""
        share = self.share
        if self.value is None:
            self.value = _ordered(vector)
        else:
            self.value = {n: x + share * (vector[n] - x) for n, x in self.value.items()}
        self.count += 1


class GradientMeans:
    """The gradient means of a budget, with their state."""

    def __init__(self, average: int) -> None:
        """Start empty.

        Args:
            average: Number of steps over which entropy gradients are averaged; 1 for no mean.
        """
        names = ("a", "b") if average > 1 else ()
        self._means = {name: BlockMean(average) for name in names}

    def halves(self, a: Vector, b: Vector) -> Halves:
        """The gradients of a step, with the means of the steps before it.

        Args:
            a: Entropy gradients of one half by groups, (K, ...) by parameter name.
            b: Those of the other half.

        Returns:
            Both.
        """
        if not self._means or self._means["a"].value is None:
            return Halves(a, b)
        means = self._means
        return Halves(a, b, means["a"].value, means["b"].value, means["a"].share)

    def add(self, halves: Halves) -> None:
        """Add the gradients of a step to the means."""
        for name, mean in self._means.items():
            mean.add(summed(getattr(halves, name)))

    def state_dict(self) -> dict[str, int]:
        """The number of vectors of each mean, as plain JSON."""
        return {name: mean.count for name, mean in self._means.items()}

    def tensors(self) -> dict[str, Tensor]:
        """The means, by `mean/parameter`."""
        vectors = {name: mean.value or {} for name, mean in self._means.items()}
        return {f"{name}/{n}": x for name, vector in vectors.items() for n, x in vector.items()}

    def load(self, counts: Mapping[str, int], tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `state_dict` and `tensors` returned."""
        for name, mean in self._means.items():
            mean.count, mean.value = counts[name], _tensors_of(name, tensors) or None


def _tensors_of(name: str, tensors: Mapping[str, Tensor]) -> Vector:
    """The vector saved under a name."""
    prefix = f"{name}/"
    columns = {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
    return _ordered(columns)


def _ordered(vector: Vector) -> Vector:
    """A copy sorted by name: the last bit of a product depends on order and memory layout."""
    return {n: vector[n].clone() for n in sorted(vector)}
