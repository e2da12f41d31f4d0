"""Exponential means of gradients over the steps of an isentropic run.

    m_t = (1 − α_t) m_{t−1} + α_t g_t,     α_t = (1/N) / (1 − (1 − 1/N)^t)

With this α_t, m_t is the weighted mean of all g so far with weights (1 − 1/N)^age; N = 1 keeps the
last g alone. The halves a and b of E have one mean each, so the noise of the two means is
independent and products across them are unbiased. The gradients of the last E are kept by groups
until the next E is drawn.

The gradient of reward is kept in `BLOCKS` means; step t is added to block t mod BLOCKS. Blocks
share no batch, so <g_J, P g_J> is computed across blocks, like the gain of an isentropic step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from isentrope.control.correction import Halves
from isentrope.control.gradients import summed
from isentrope.nouns.vectors import Vector, dot

BLOCKS = 4
"""Number of means of the reward gradient, each over its own batches."""


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
    """The gradient means of an isentropic step, with their state."""

    def __init__(self, average: int, reward_average: int | None = None) -> None:
        """Start empty.

        Args:
            average: Number of draws of E over which entropy gradients are averaged; 1 for no mean.
            reward_average: Number of steps over which reward gradients are averaged; None if they
                are not kept.
        """
        names = ("a", "b") if average > 1 else ()
        self._means = {name: BlockMean(average) for name in names}
        self._latest: dict[str, Vector] = {}
        blocks = () if reward_average is None else range(BLOCKS)
        self._reward = [BlockMean(max(reward_average or 0, BLOCKS) / BLOCKS) for _ in blocks]

    def observe(self, a: Vector, b: Vector) -> None:
        """Store a draw of E, and add the draw before it to the means.

        Args:
            a: Entropy gradients of one half by groups, (K, ...) by parameter name.
            b: Those of the other half.
        """
        for name, mean in self._means.items():
            if name in self._latest:
                mean.add(summed(self._latest[name]))
        self._latest = {"a": _ordered(a), "b": _ordered(b)}

    @property
    def empty(self) -> bool:
        """Whether no draw is stored."""
        return not self._latest

    def halves(self) -> Halves:
        """The gradients of the latest draw, with the means of the draws before it."""
        a, b = self._latest["a"], self._latest["b"]
        if not self._means or self._means["a"].value is None:
            return Halves(a, b)
        means = self._means
        return Halves(a, b, means["a"].value, means["b"].value, means["a"].share)

    def add_reward(self, step: int, gradient: Vector) -> None:
        """Add a step's gradient of reward."""
        if self._reward:
            self._reward[step % BLOCKS].add(gradient)

    def reward_projection(self, preconditioner: Vector) -> Callable[[Vector], Vector] | None:
        """The map Π, which removes the part that changes the mean reward to first order.

        Πx = x − w <j, x>/D,     w = P j,     j the mean over blocks, D the mean of <j_k, P j_l>
        over pairs k ≠ l

        Args:
            preconditioner: P of this step.

        Returns:
            Π; None while D is not larger than twice its jackknife error over blocks.
        """
        blocks = [mean.value for mean in self._reward]
        filled = [x for x in blocks if x is not None]
        if len(filled) < BLOCKS:
            return None
        products = torch.tensor(
            [
                [dot(x, {n: preconditioner[n] * z for n, z in y.items()}) for y in filled]
                for x in filled
            ],
            dtype=torch.float64,
        )
        across, error = _off_diagonal_mean(products)
        if not across > 2 * error:
            return None
        mean = {n: torch.stack([x[n] for x in filled]).mean(0) for n in filled[0]}
        w = {n: preconditioner[n] * x for n, x in mean.items()}

        def project(x: Vector) -> Vector:
            scale = dot(mean, x) / across
            return {n: y - scale * w[n] for n, y in x.items()}

        return project

    def state_dict(self) -> dict[str, int]:
        """The number of vectors of each mean that is there, and of stored draws, as plain JSON."""
        counts = {n: m.count if m.value is not None else 0 for n, m in self._by_name().items()}
        return counts | ({"kept": len(self._latest)} if self._latest else {})

    def tensors(self) -> dict[str, Tensor]:
        """The means, by `mean/parameter`, and the stored draw, by `kept_half/parameter`."""
        vectors = {name: mean.value or {} for name, mean in self._by_name().items()}
        vectors |= {f"kept_{name}": x for name, x in self._latest.items()}
        return {f"{name}/{n}": x for name, vector in vectors.items() for n, x in vector.items()}

    def load(self, counts: Mapping[str, int], tensors: Mapping[str, Tensor]) -> None:
        """Resume from what `state_dict` and `tensors` returned."""
        for name, mean in self._by_name().items():
            mean.count, mean.value = counts[name], _tensors_of(name, tensors) or None
        draw = {name: _tensors_of(f"kept_{name}", tensors) for name in ("a", "b")}
        self._latest = {name: x for name, x in draw.items() if x}

    def _by_name(self) -> dict[str, BlockMean]:
        return self._means | {f"reward_{k}": mean for k, mean in enumerate(self._reward)}


def _tensors_of(name: str, tensors: Mapping[str, Tensor]) -> Vector:
    """The vector saved under a name."""
    prefix = f"{name}/"
    columns = {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
    return _ordered(columns)


def _ordered(vector: Vector) -> Vector:
    """A copy sorted by name: the last bit of a product depends on order and memory layout."""
    return {n: vector[n].clone() for n in sorted(vector)}


def _off_diagonal_mean(products: Tensor) -> tuple[float, float]:
    """The mean of <j_k, P j_l> over k ≠ l, and its error by the jackknife over blocks."""
    n = len(products)

    def mean(blocks: list[int]) -> float:
        part = products[blocks][:, blocks]
        return float((part.sum() - part.diagonal().sum()) / (len(blocks) * (len(blocks) - 1)))

    without = [mean([j for j in range(n) if j != k]) for k in range(n)]
    centre = sum(without) / n
    return mean(list(range(n))), math.sqrt((n - 1) / n * sum((x - centre) ** 2 for x in without))
