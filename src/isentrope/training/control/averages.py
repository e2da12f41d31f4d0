"""What an isentropic step remembers of earlier steps: mean gradients, as tensors.

    m_t = (1 − α_t) m_{t−1} + α_t g_t,     α_t = (1/N) / (1 − (1 − 1/N)^t)

α_t makes m_t a weighted mean of all g so far with weights (1 − 1/N)^age; N = 1 has no memory. The
halves a and b of E have a mean each, so that products across them stay free of their noise.

The gradient of reward is kept in `BLOCKS` means, step t going to block t mod BLOCKS. Blocks share
no batch, so <g_J, P g_J> is taken across them, as the gain of an isentropic step is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from isentrope.training.control.correction import Halves
from isentrope.vectors import Vector, dot

BLOCKS = 4
"""Means of the reward gradient, of disjoint batches."""


class Mean:
    """A mean of vectors with exponential weights.

    Attributes:
        value: The mean; None before the first vector.
        count: Vectors seen.
    """

    def __init__(self, memory: float) -> None:
        """Start empty.

        Args:
            memory: N, in vectors; 1 keeps the last one alone.
        """
        self._memory = memory
        self.value: Vector | None = None
        self.count = 0

    @property
    def share(self) -> float:
        """α of the next vector."""
        rest = 1 - 1 / self._memory
        return (1 - rest) / (1 - rest ** (self.count + 1))

    def add(self, vector: Vector) -> None:
        """Take a vector in."""
        share = self.share
        if self.value is None:
            self.value = {n: x.clone() for n, x in vector.items()}
        else:
            self.value = {n: x + share * (vector[n] - x) for n, x in self.value.items()}
        self.count += 1


class Memory:
    """The means of an isentropic step, with their state."""

    def __init__(self, average: int, reward_average: int | None = None) -> None:
        """Start empty.

        Args:
            average: Steps over which entropy gradients are averaged; 1: none.
            reward_average: Steps over which the gradient of reward is; None: it is not kept.
        """
        names = ("a", "b") if average > 1 else ()
        self._means = {name: Mean(average) for name in names}
        blocks = () if reward_average is None else range(BLOCKS)
        self._reward = [Mean(max(reward_average or 0, BLOCKS) / BLOCKS) for _ in blocks]

    def halves(self, a: Vector, b: Vector) -> Halves:
        """This step's gradients beside the mean of those before.

        Args:
            a: Groups of one half.
            b: Groups of the other.

        Returns:
            All of them.
        """
        if not self._means or self._means["a"].value is None:
            return Halves(a, b)
        means = self._means
        return Halves(a, b, means["a"].value, means["b"].value, means["a"].share)

    def add(self, a: Vector, b: Vector) -> None:
        """Take a step's entropy gradients in."""
        for name, vector in zip(self._means, (a, b), strict=False):
            self._means[name].add(vector)

    def add_reward(self, step: int, gradient: Vector) -> None:
        """Take a step's gradient of reward in."""
        if self._reward:
            self._reward[step % BLOCKS].add(gradient)

    def neutral(self, preconditioner: Vector) -> Callable[[Vector], Vector] | None:
        """Π: a vector without its part that changes the mean reward to first order.

        Πx = x − w <j, x>/D,     w = P j,     j the mean over blocks, D the mean of <j_k, P j_l>
        over pairs k ≠ l

        Args:
            preconditioner: P of this step.

        Returns:
            Π; None while D is not above two of its errors, by the jackknife over blocks.
        """
        blocks = [mean.value for mean in self._reward]
        known = [x for x in blocks if x is not None]
        if len(known) < BLOCKS:
            return None
        products = torch.tensor(
            [
                [dot(x, {n: preconditioner[n] * z for n, z in y.items()}) for y in known]
                for x in known
            ],
            dtype=torch.float64,
        )
        across, error = _off_diagonal_mean(products)
        if not across > 2 * error:
            return None
        mean = {n: torch.stack([x[n] for x in known]).mean(0) for n in known[0]}
        w = {n: preconditioner[n] * x for n, x in mean.items()}

        def project(x: Vector) -> Vector:
            scale = dot(mean, x) / across
            return {n: y - scale * w[n] for n, y in x.items()}

        return project

    def state_dict(self) -> dict[str, int]:
        """How many vectors each mean has seen, as plain JSON."""
        return {name: mean.count for name, mean in self._named().items()}

    def tensors(self) -> dict[str, Tensor]:
        """The means, by `mean/parameter`."""
        return {
            f"{name}/{parameter}": x
            for name, mean in self._named().items()
            for parameter, x in (mean.value or {}).items()
        }

    def load(self, counts: Mapping[str, int], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a saved state.

        Args:
            counts: What `state_dict` returned.
            tensors: What `tensors` returned.

        Raises:
            ValueError: If the tensors are not those that the counts name.
        """
        for name, mean in self._named().items():
            mean.count = counts[name]
            inside = {
                key.removeprefix(f"{name}/"): x
                for key, x in tensors.items()
                if key.startswith(f"{name}/")
            }
            if bool(inside) != bool(mean.count):
                raise ValueError(f"The saved mean {name!r} has seen {mean.count} vectors.")
            mean.value = inside or None

    def _named(self) -> dict[str, Mean]:
        return self._means | {f"reward_{k}": mean for k, mean in enumerate(self._reward)}


def _off_diagonal_mean(products: Tensor) -> tuple[float, float]:
    """The mean of <j_k, P j_l> over k ≠ l, and its error by the jackknife over blocks."""
    n = len(products)

    def mean(kept: list[int]) -> float:
        part = products[kept][:, kept]
        return float((part.sum() - part.diagonal().sum()) / (len(kept) * (len(kept) - 1)))

    without = [mean([j for j in range(n) if j != k]) for k in range(n)]
    centre = sum(without) / n
    return mean(list(range(n))), math.sqrt((n - 1) / n * sum((x - centre) ** 2 for x in without))
