"""The first-order changes of reward and entropy that directions of one length make (T14).

    yᵀ G⁻¹ y ≤ ρ²,     G = [[a, s], [s, b]],     y = (y_J, y_H)

a = <g_J, P g_J> and b = <g_H, P g_H> are the square lengths of the gradients of reward and entropy,
and s is their product. The largest y_J among the points with y_H ≥ h is

    y_J*(h) = √a ρ                                       h ≤ s ρ/√a
            = s h/b + √((a − s²/b)(ρ² − h²/b))           s ρ/√a < h ≤ √b ρ

and −dy_J*/dh, the reward for a nat along the edge, is 0 in the first case and grows without bound
towards the end of the second. All numbers may have leading dimensions: one ellipse each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ellipse:
    """Ellipses of one length.

    Attributes:
        gram: (..., 2, 2) float64, G.
        length: ρ.
    """

    gram: Tensor
    length: float

    @property
    def reach(self) -> Tensor:
        """(..., 2) the largest y_J and the largest y_H; NaN where a square length is negative."""
        return self.gram.diagonal(dim1=-2, dim2=-1).sqrt() * self.length

    @property
    def cosine(self) -> Tensor:
        """(...) cosine of the two gradients."""
        lengths = self.gram.diagonal(dim1=-2, dim2=-1).sqrt()
        return self.gram[..., 0, 1] / lengths.prod(-1)

    def best(self, entropy: Tensor) -> Tensor:
        """The largest y_J at a y_H, or above it.

        Args:
            entropy: (...) h.

        Returns:
            (...) y_J*(h); NaN where no point has so much entropy.
        """
        slope, height, depth = self._edge(entropy)
        formula = slope * entropy + (height * depth).sqrt()
        return torch.where(self._is_free(entropy), self.reach[..., 0], formula)

    def reward_for_a_nat(self, entropy: Tensor) -> Tensor:
        """What a nat less earns along the edge.

        Args:
            entropy: (...) h.

        Returns:
            (...) −dy_J*/dh; NaN where no point has so much entropy.
        """
        slope, height, depth = self._edge(entropy)
        square = self.gram[..., 1, 1]
        price = (height / depth).sqrt() * entropy / square - slope
        return torch.where(self._is_free(entropy), torch.zeros_like(price), price)

    def share(self, square: Tensor) -> Tensor:
        """The share of the radius that a point is at.

        Args:
            square: (..., 2, 2) y yᵀ, or an estimate of it.

        Returns:
            (...) √(yᵀ G⁻¹ y)/ρ; NaN where the square is negative, or G has no inverse.
        """
        (a, s), (_, b) = (row.unbind(-1) for row in self.gram.unbind(-2))
        (reward, cross), (_, entropy) = (row.unbind(-1) for row in square.unbind(-2))
        product = b * reward - 2 * s * cross + a * entropy  # yᵀ adj(G) y
        return (product / (a * b - s * s)).sqrt() / self.length

    def _is_free(self, entropy: Tensor) -> Tensor:
        """Whether the largest y_J of all has so much entropy."""
        return entropy * self.gram[..., 0, 0].sqrt() <= self.gram[..., 0, 1] * self.length

    def _edge(self, entropy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """s/b, a − s²/b and ρ² − h²/b."""
        square = self.gram[..., 1, 1]
        slope = self.gram[..., 0, 1] / square
        height = self.gram[..., 0, 0] - slope * self.gram[..., 0, 1]
        return slope, height, self.length**2 - entropy.square() / square
