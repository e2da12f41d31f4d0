"""A prediction at every step from the gradient of the last reading: two inner products, no pass.

    ηδH₁ ≈ η <g, v>,     g = ∂F at the θ of the last reading, v the step that is about to be taken

g grows old. At each reading the old and the new gradient are multiplied with the same v; the root
mean square of the differences, over the last readings, is the error that is given with every
prediction. Both gradients are of their own mini-batch, so it holds sampling noise and age.

Over steps there is an exponential moving average of readings, with its error:

    m_t = Σ_k β^(t−k) x_k / Σ_k β^(t−k),     SE² = Σ_k β^(2(t−k)) se_k² / (Σ_k β^(t−k))²

The errors of the x_k are independent (fresh samples each). What is estimated moves with training:
the mean is of the last 1/(1 − β) readings, and its error is the sampling error alone.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from isentrope.nouns.vectors import Vector, dot
from isentrope.system.saved_fields import SavedFields


class RunningMean(SavedFields):
    """The moving average of all estimates so far."""

    SAVED = ("_weight", "_value", "_variance")

    def __init__(self, decay: float = 0.9) -> None:
        """Start without estimates.

        Args:
            decay: β in [0, 1).
        """
        self._decay = decay
        self._weight = self._value = self._variance = 0.0

    def update(self, value: float, se: float) -> None:
        """Add an estimate."""
        self._weight = self._decay * self._weight + 1
        self._value = self._decay * self._value + value
        self._variance = self._decay**2 * self._variance + se**2

    @property
    def value(self) -> float:
        """The mean; NaN without an estimate."""
        return self._value / self._weight if self._weight else math.nan

    @property
    def se(self) -> float:
        """Its standard error."""
        return self._variance**0.5 / self._weight


class KeptGradient(SavedFields):
    """The gradient of the last reading.

    Attributes:
        every: Steps from one prediction to the next; None for no predictions.
    """

    SAVED = ("_step", "_squares")

    def __init__(self, every: int | None, decay: float) -> None:
        """Keep nothing yet.

        Args:
            every: Steps from one prediction to the next; None for no predictions.
            decay: β of the mean over readings, in [0, 1).

        Raises:
            ValueError: If `every` is below 1.
        """
        if every is not None and every < 1:
            raise ValueError(f"log_every is a number of steps, 1 or more, got {every}.")
        self.every = every
        self._gradient: Vector = {}
        self._step = 0
        self._squares = RunningMean(decay)

    def due(self, steps: int) -> bool:
        """Whether the step after so many steps has a prediction."""
        return self.every is not None and bool(self._gradient) and steps % self.every == 0

    def predict(self, step: int, components: Mapping[str, Vector], eta: float) -> dict[str, float]:
        """The change that a step causes to first order, by the gradient that is kept.

        Args:
            step: The step.
            components: Parts of v that are not zero.
            eta: Its learning rate.

        Returns:
            Numbers for a log: the prediction, its error where it is known, its parts, and the steps
            since the reading; none without a gradient.
        """
        if not self._gradient:
            return {}
        parts = {name: eta * dot(part, self._gradient) for name, part in components.items()}
        return {
            "probe/kept_first_order": sum(parts.values()),
            "probe/kept_first_order_se": math.sqrt(self._squares.value),
            "probe/kept_age": step - self._step,
            **{f"probe/kept_{name}": value for name, value in parts.items()},
        }

    def renew(self, step: int, gradient: Vector, components: Mapping[str, Vector], eta: float):
        """Keep the gradient of a new reading, and compare the old one with it.

        Args:
            step: The step of the reading.
            gradient: Of its mini-batch.
            components: Parts of v that are not zero.
            eta: Its learning rate.
        """
        if self._gradient:
            changes = (dot(v, gradient) - dot(v, self._gradient) for v in components.values())
            self._squares.update((eta * sum(changes)) ** 2, 0.0)
        self._gradient = gradient
        self._step = step

    def tensors(self) -> dict[str, Tensor]:
        """The gradient, on the CPU; empty before the first reading."""
        return {name: x.cpu().contiguous() for name, x in self._gradient.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue with a saved gradient."""
        if self.every is not None:
            self._gradient = {name: x.to(torch.float32) for name, x in tensors.items()}
