"""Exponential means of entropy gradients over the steps of a run.

    m_t = (1 − α_t) m_{t−1} + α_t g_t,     α_t = (1/N) / (1 − (1 − 1/N)^t)

With this α_t, m_t is the weighted mean of all g so far with weights (1 − 1/N)^age; N = 1 keeps the
last g alone. The halves a and b of E have one mean each, so the noise of the two means is
independent and products across them are unbiased.
"""

from collections.abc import Mapping

from torch import Tensor

from isentrope.control.correction import Halves
from isentrope.nouns.vectors import Vector


class GradientMeans:
    """The means of both halves, with their state.

    Attributes:
        count: Readings added.
    """

    def __init__(self, window: int) -> None:
        """Start empty.

        Args:
            window: N, in readings.
        """
        self._window, self.count = window, 0
        self._means: dict[str, Vector] = {}

    def halves(self, a: Vector, b: Vector) -> Halves:
        """The gradients of a reading, with the means of those before it.

        Args:
            a: Entropy gradients of one half by groups, (K, ...) by parameter name.
            b: Those of the other half.

        Returns:
            Both.
        """
        if not self._means:
            return Halves(a, b)
        decay = 1 - 1 / self._window
        share = (1 - decay) / (1 - decay ** (self.count + 1))  # α of this reading
        return Halves(a, b, self._means["a"], self._means["b"], share)

    def add(self, halves: Halves) -> None:
        """Add the gradients of a reading."""
        # sorted: the last bit of a product depends on order and memory layout
        self._means = {
            which: {n: x.clone() for n, x in sorted(halves.averaged(which).items())}
            for which in ("a", "b")
        }
        self.count += 1

    @property
    def mean(self) -> Vector:
        """The mean of both halves over readings."""
        return {n: (x + self._means["b"][n]) / 2 for n, x in self._means["a"].items()}

    def tensors(self) -> dict[str, Tensor]:
        """The means, by `half/parameter`."""
        return {f"{half}/{n}": x for half, mean in self._means.items() for n, x in mean.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `tensors` returned; `count` is set apart."""
        self._means = {}
        for name in sorted(tensors):
            half, _, parameter = name.partition("/")
            self._means.setdefault(half, {})[parameter] = tensors[name].clone()
