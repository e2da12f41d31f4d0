"""What an isentropic step remembers of earlier steps: mean gradients, as tensors.

    m_t = (1 − α_t) m_{t−1} + α_t g_t,     α_t = (1/N) / (1 − (1 − 1/N)^t)

α_t makes m_t a weighted mean of all g so far with weights (1 − 1/N)^age; N = 1 has no memory. The
halves a and b of E have a mean each, so that products across them stay free of their noise. Where
an E serves several steps, its gradients are kept by groups until the next one is drawn.

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
            self.value = _ordered(vector)
        else:
            self.value = {n: x + share * (vector[n] - x) for n, x in self.value.items()}
        self.count += 1


class Memory:
    """The means of an isentropic step, with their state."""

    def __init__(
        self, average: int, reward_average: int | None = None, *, keep: bool = False
    ) -> None:
        """Start empty.

        Args:
            average: Draws of E over which entropy gradients are averaged; 1: none.
            reward_average: Steps over which the gradient of reward is; None: it is not kept.
            keep: Whether a draw serves more than one step.
        """
        names = ("a", "b") if average > 1 else ()
        self._means = {name: Mean(average) for name in names}
        self._keep, self._latest = keep, dict[str, Vector]()
        blocks = () if reward_average is None else range(BLOCKS)
        self._reward = [Mean(max(reward_average or 0, BLOCKS) / BLOCKS) for _ in blocks]

    def observe(self, a: Vector, b: Vector) -> None:
        """Take a draw of E in; the one before it becomes part of the means.

        Args:
            a: Entropy gradients of one half by groups, (K, ...) by parameter name.
            b: Those of the other.
        """
        self._fold()
        self._latest = {"a": _ordered(a), "b": _ordered(b)}

    @property
    def empty(self) -> bool:
        """Whether there is no draw to correct a step by."""
        return not self._latest

    def halves(self) -> Halves:
        """The latest draw's gradients beside the mean of those before."""
        a, b = self._latest["a"], self._latest["b"]
        if not self._means or self._means["a"].value is None:
            return Halves(a, b)
        means = self._means
        return Halves(a, b, means["a"].value, means["b"].value, means["a"].share)

    def settle(self) -> None:
        """After a step: let go of the draw, unless later steps use it."""
        if not self._keep:
            self._fold()

    def _fold(self) -> None:
        for name, mean in self._means.items():
            if name in self._latest:
                mean.add({n: x.sum(0) for n, x in self._latest[name].items()})
        self._latest = {}

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
        """How many vectors each mean has seen, and the draws kept, as plain JSON."""
        seen = {name: mean.count for name, mean in self._named().items()}
        return seen | ({"kept": len(self._latest)} if self._keep else {})

    def tensors(self) -> dict[str, Tensor]:
        """The means, by `mean/parameter`, and the draw that is kept, by `kept_half/parameter`."""
        vectors = {name: mean.value or {} for name, mean in self._named().items()}
        vectors |= {f"kept_{name}": x for name, x in self._latest.items()}
        return {f"{name}/{n}": x for name, vector in vectors.items() for n, x in vector.items()}

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
            mean.value = _named_so(name, tensors) or None
            if (mean.value is None) != (mean.count == 0):
                raise ValueError(f"The saved mean {name!r} has seen {mean.count} vectors.")
        kept = {name: _named_so(f"kept_{name}", tensors) for name in ("a", "b")}
        self._latest = {name: x for name, x in kept.items() if x}
        if len(self._latest) != counts.get("kept", 0):
            raise ValueError("The saved entropy gradients of the last draw are not complete.")

    def _named(self) -> dict[str, Mean]:
        return self._means | {f"reward_{k}": mean for k, mean in enumerate(self._reward)}


def _named_so(name: str, tensors: Mapping[str, Tensor]) -> Vector:
    """The vector saved under a name."""
    head = f"{name}/"
    return _ordered({k.removeprefix(head): x for k, x in tensors.items() if k.startswith(head)})


def _ordered(vector: Vector) -> Vector:
    """A copy in memory of its own, by name: the last bit of a product depends on both."""
    return {n: vector[n].clone() for n in sorted(vector)}


def _off_diagonal_mean(products: Tensor) -> tuple[float, float]:
    """The mean of <j_k, P j_l> over k ≠ l, and its error by the jackknife over blocks."""
    n = len(products)

    def mean(kept: list[int]) -> float:
        part = products[kept][:, kept]
        return float((part.sum() - part.diagonal().sum()) / (len(kept) * (len(kept) - 1)))

    without = [mean([j for j in range(n) if j != k]) for k in range(n)]
    centre = sum(without) / n
    return mean(list(range(n))), math.sqrt((n - 1) / n * sum((x - centre) ** 2 for x in without))
