"""θ of a policy: the parameters of a model that require a gradient, and where they can move."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from isentrope.models.sharding import Parameters, SpreadPoint, is_spread, moved_along
from isentrope.nouns.forward_mode import derivatives_along, derivatives_at_zero
from isentrope.nouns.vectors import Vector, require_same_names
from isentrope.parallel.ranks import SharedWork
from isentrope.parallel.sharded import is_sharded, local_part, total
from isentrope.system.one_line import plural

_multi_tensor: Any = torch
"""Its operations on lists of tensors have no public names; torch's optimizers are made of them."""

NUMBERS_MOVED = 2**24
"""Numbers of a parameter vector that are in float64 at once while it is moved."""


def _move_together(theta: Vector, direction: Mapping[str, Tensor], eta: float) -> Vector:
    """What `moved_along` gives of each parameter, in a few operations for many of them."""
    # a sweep moves them once per micro-batch and learning rate: one after the other, the hundreds
    # of small matrices of an adapter would take as many operations as the model's own layers
    shifted = {n: torch.empty_like(p) for n, p in theta.items()}
    groups: list[list[str]] = [[]]
    numbers = 0
    for name, parameter in theta.items():
        numbers += parameter.numel()
        if groups[-1] and numbers > NUMBERS_MOVED:
            groups.append([])
            numbers = parameter.numel()
        groups[-1].append(name)
    for names in groups:
        points = [theta[n] for n in names]
        steps = [
            direction[n].to(p.device, torch.float64) for n, p in zip(names, points, strict=True)
        ]
        sums = [torch.empty_like(p, dtype=torch.float64) for p in points]
        _multi_tensor._foreach_copy_(sums, points)
        scaled = _multi_tensor._foreach_mul(steps, eta)
        _multi_tensor._foreach_add_(sums, scaled)
        _multi_tensor._foreach_copy_([shifted[n] for n in names], sums)
    return shifted


class Theta(SharedWork):
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
    def size(self) -> str:
        """The size of θ in words."""
        theta = self.theta
        parameters = plural(sum(x.numel() for x in theta.values()), "trainable parameter")
        return f"{parameters} in {plural(len(theta), 'tensor')}"

    @property
    def parts(self) -> Vector:
        """What this process holds of θ: θ itself, where it is not spread over processes."""
        return {n: local_part(p) for n, p in self.theta.items()}

    @property
    def spreads_theta(self) -> bool:
        """Whether trained parameters are spread over processes (`models.sharding`)."""
        return any(map(is_sharded, self.theta.values()))

    def parts_to_count(self, vector: Vector) -> Vector:
        """What this process counts of a vector that all have, so that each entry is counted once.

        Args:
            vector: Over θ, or some of it.

        Returns:
            This process's parts of what is spread; of the rest everything on the first process.
        """
        return {n: local_part(x) for n, x in vector.items() if is_sharded(x) or not self.ranks.rank}

    def complete_rows(self, rows: Iterable[Tensor]) -> None:
        """Give every process all rows over θ, where each has written some.

        Where θ is spread over processes, each has its parts of all rows, and they stay.

        Args:
            rows: Of any type, zero wherever another process has written.
        """
        if not self.spreads_theta:
            self.ranks.join(rows)

    def rows_to_count(self, count: int) -> Tensor:
        """Which rows of a sum over θ this process counts: where θ is spread its parts of all.

        Args:
            count: Rows in all.

        Returns:
            Their indices, int64, on the device.
        """
        rows = torch.arange(count, device=self.device)
        if self.spreads_theta:
            return rows
        return rows.tensor_split(self.ranks.size)[self.ranks.rank]

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
        if not isinstance(eta, Tensor) and not any(map(is_sharded, trained.values())):
            return _move_together({n: p.detach() for n, p in trained.items()}, direction, eta)
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
        v = {n: direction[n] for n in theta}
        kinds = [(x.dtype, x.device) for x in v.values()]
        if kinds != [(p.dtype, p.device) for p in theta.values()]:
            v = {n: torch.empty_like(p) for n, p in theta.items()}
            _multi_tensor._foreach_copy_([*v.values()], [direction[n] for n in v])
        return derivatives_along(function, theta, v, order)

    def require_direction(self, direction: Mapping[str, Tensor]) -> None:
        """Refuse a vector that is not over exactly θ.

        Args:
            direction: A named vector.

        Raises:
            ValueError: If it holds NaN or infinity.
        """
        require_same_names(self.theta, direction)
        not_finite = {n: (~local_part(x).isfinite()).sum() for n, x in direction.items()}
        for name, entries in zip(not_finite, total(not_finite, direction), strict=True):
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
