"""θ of a policy: the parameters of a model that require a gradient, and where they can move."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from isentrope.models.sharding import Parameters, SpreadPoint, is_spread, moved_along
from isentrope.nouns.forward_mode import derivatives_along, derivatives_at_zero
from isentrope.nouns.vectors import Vector, is_sharded, local_part, require_same_names, total


class Theta:
    """The trainable parameters of a model; their set is asserted when the policy is made.

    Attributes:
        model: The Hugging Face causal LM, or a PEFT model around one.
    """

    model: Any

    @property
    def device(self) -> torch.device:
        """Device of the trainable parameters."""
        return next(p for p in self.model.parameters() if p.requires_grad).device

    @property
    def sharded(self) -> bool:
        """Whether the base is spread over processes (`models.sharding`)."""
        return is_spread(self.model)

    @property
    def theta(self) -> Vector:
        """θ: the trainable parameters by name, detached, sharing the model's memory."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parts(self) -> Vector:
        """What this process holds of θ: θ itself, where it is not spread over processes."""
        return {n: local_part(p) for n, p in self.theta.items()}

    @property
    def spreads_theta(self) -> bool:
        """Whether trained parameters are spread over processes (`models.sharding`)."""
        return any(map(is_sharded, self.theta.values()))

    def parameters_along(self, direction: Vector, eta: Tensor | float) -> Parameters:
        """θ + ηv, added in float64 and then rounded to the runtime dtype.

        Args:
            direction: v by parameter name.
            eta: A number, or a scalar tensor to differentiate by.

        Returns:
            The shifted parameters; those that are spread are added up where they are used.
        """
        # inside a derivative what is detached is another tensor, which no longer says it is sharded
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        return {
            n: SpreadPoint(direction[n], eta)
            if is_sharded(p)
            else moved_along(p.detach(), direction[n], eta)
            for n, p in trained.items()
        }

    def derivatives(
        self, function: Callable[[Parameters], Any], direction: Vector, order: int
    ) -> tuple[Any, ...]:
        """Value and derivatives of f(θ + ev) at e = 0, by forward mode.

        Args:
            function: Maps parameters by name to a tensor or a tuple of tensors.
            direction: v by parameter name.
            order: Highest derivative, 1 or 2.

        Returns:
            (f, f') or (f, f', f'').
        """
        if self.spreads_theta:  # v is gathered where it is used, layer by layer
            return derivatives_at_zero(
                lambda e: function(self.parameters_along(direction, e)), order
            )
        theta = self.theta
        v = {n: direction[n].to(p.device, p.dtype) for n, p in theta.items()}
        return derivatives_along(function, theta, v, order)

    def require_direction(self, direction: Mapping[str, Tensor]) -> None:
        """Refuse a vector that is not over exactly θ.

        Args:
            direction: A named vector.

        Raises:
            ValueError: If it holds NaN or infinity.
        """
        require_same_names(self.theta, direction)
        wrong = {n: (~local_part(x).isfinite()).sum() for n, x in direction.items()}
        for name, entries in zip(wrong, total(wrong, direction), strict=True):
            if entries:
                raise ValueError(f"The direction is not finite in parameter {name!r}.")

    @contextmanager
    def shifted(self, direction: Vector, eta: float) -> Generator[None]:
        """Put θ + ηv into the model for a block, then restore θ exactly.

        Only sampling needs this; scoring at θ + ηv does not change the model.

        Args:
            direction: v by parameter name.
            eta: Step size.

        Yields:
            Nothing.
        """
        self.require_direction(direction)
        theta = self.theta
        saved = {n: p.clone() for n, p in theta.items()}
        try:
            for n, p in theta.items():
                p.copy_(moved_along(p, direction[n], eta))
            yield
        finally:
            for n, p in theta.items():
                p.copy_(saved[n])
