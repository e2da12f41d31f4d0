"""Random projections of gradients from both sides of each matrix (T7).

For a matrix parameter with gradient G of a response, (out, in), and independent A (k, out) and
B (k, in) of normal numbers of variance 1/k,

    G̃ = A (P^½ ⊙ G) Bᵀ,     E <G̃, G̃'> = <G, P G'>

so K is unbiased with k² numbers per matrix. A product errs by about |G||G'|√(2/k) or less: pairs of
nearly orthogonal gradients stay uncertain, sums over many pairs do not
(docs/results/sketching.md). A side of at most k is kept whole, and so are norms and biases. P is no
product of the two sides, so G is formed before it is projected; without P too, for one code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.nouns.vectors import Vector, require_same_names
from isentrope.policy.language_model import Policy


@dataclass(frozen=True)
class Sketch:
    """How far gradients are projected.

    Attributes:
        side: k, rows of either projection; at least 1.
        seed: Of the projections. The spread of K over seeds is its error.
    """

    side: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a side below 1."""
        if self.side < 1:
            raise ValueError(f"A sketch needs a side of at least 1, got {self.side}.")


class Projection:
    """A, B and P^½ of every parameter of a policy."""

    def __init__(self, policy: Policy, sketch: Sketch, preconditioner: Vector | None) -> None:
        """Draw the projections.

        Args:
            policy: The policy.
            sketch: How far.
            preconditioner: P, diagonal, by parameter name; None for 1.

        Raises:
            ValueError: If θ is spread over processes, or P is negative.
        """
        if policy.spreads_theta:
            raise ValueError(
                "A sketch projects whole gradients, and θ is spread over processes: compute the "
                "kernel without a sketch."
            )
        theta = policy.theta
        generator = torch.Generator().manual_seed(sketch.seed)

        def side_of(size: int, like: Tensor) -> Tensor | None:
            numbers = torch.randn(sketch.side, size, generator=generator) / sketch.side**0.5
            return numbers.to(like) if size > sketch.side else None

        self._sides = {
            name: (side_of(p.shape[0], p), side_of(p.shape[1], p))
            for name, p in theta.items()
            if p.ndim == 2
        }
        self._roots: Vector = {}
        if preconditioner is not None:
            require_same_names(theta, preconditioner)
            if any(bool((x < 0).any()) for x in preconditioner.values()):
                raise ValueError("A sketch takes the root of P, and P has negative numbers.")
            self._roots = {name: preconditioner[name].sqrt().to(p) for name, p in theta.items()}

    def of(self, name: str, gradients: Tensor) -> Tensor:
        """Project the gradients of one parameter.

        Args:
            name: The parameter.
            gradients: (b, *shape).

        Returns:
            (b, *projected shape).
        """
        scaled = gradients * self._roots[name] if self._roots else gradients
        left, right = self._sides.get(name, (None, None))
        inputs = scaled if right is None else scaled @ right.T
        return inputs if left is None else left @ inputs

    def like(self, theta: Vector) -> Vector:
        """A tensor without memory of its own for every parameter, of the projected shape.

        Args:
            theta: The parameters.

        Returns:
            By parameter name, of its type and on its device.
        """
        shapes = {name: list(p.shape) for name, p in theta.items()}
        for name, sides in self._sides.items():
            for axis, side in enumerate(sides):
                shapes[name][axis] = shapes[name][axis] if side is None else len(side)
        return {n: torch.empty((), dtype=p.dtype, device=p.device).expand(shapes[n])
                for n, p in theta.items()}  # fmt: skip
