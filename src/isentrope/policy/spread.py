"""Conditional variances of a token's log-probability and of its derivative, given the prefix.

    V_k = Σ_a π(a) (log π(a) + H_k)²          F_k = Σ_a π(a) (∂_v log π(a))²

V_k is the variance of s_k, and F_k that of ∂_v s_k, over the tokens that the policy may draw. Both
come from the sums over the vocabulary that give s and H: log π and ∂_v log π are the logits l and
∂_v l up to a constant. ∂_v l is the tangent that forward mode carries along with the logits.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


class Spread:
    """Running second moments of one chunk of the vocabulary after another.

    With w_a = e^{l_a − top} and x_a = l_a − top, as in `scoring`:

    Attributes:
        square: (m,) Σ_a w_a x_a².
        slope: (m,) Σ_a w_a ∂_v l_a.
        slope_square: (m,) Σ_a w_a (∂_v l_a)².
    """

    def __init__(self, like: Tensor) -> None:
        """Start at zero.

        Args:
            like: (m,) any tensor of the arithmetic's dtype and device.
        """
        self.square = self.slope = self.slope_square = torch.zeros_like(like)

    def rescale(self, drop: Tensor, weighted: Tensor, total: Tensor) -> None:
        """Refer the sums to a new `top`.

        Args:
            drop: (m,) old top − new top.
            weighted: (m,) Σ_a w_a x_a before the change.
            total: (m,) Σ_a w_a before the change.
        """
        drop, weighted, total = (unpack_dual(x).primal for x in (drop, weighted, total))
        scale = drop.exp()
        self.square = scale * (self.square + 2 * drop * weighted + drop.square() * total)
        self.slope, self.slope_square = scale * self.slope, scale * self.slope_square

    def add(self, logits: Tensor, weights: Tensor, shifted: Tensor) -> None:
        """Add a chunk.

        Args:
            logits: (m, c) l, with their tangent where forward mode is at work.
            weights: (m, c) w.
            shifted: (m, c) x.
        """
        weights, shifted = unpack_dual(weights).primal, unpack_dual(shifted).primal
        self.square = self.square + (weights * shifted.square()).sum(1)
        slope = unpack_dual(logits).tangent
        if slope is not None:
            self.slope = self.slope + (weights * slope).sum(1)
            self.slope_square = self.slope_square + (weights * slope.square()).sum(1)

    def variances(self, weighted: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """V and F.

        Args:
            weighted: (m,) Σ_a w_a x_a over the whole vocabulary.
            total: (m,) Σ_a w_a.

        Returns:
            V in nats² and F in nats² per unit η², each (m,); F is 0 outside forward mode.
        """
        weighted, total = unpack_dual(weighted).primal, unpack_dual(total).primal
        value = self.square / total - (weighted / total).square()
        slope = self.slope_square / total - (self.slope / total).square()
        return value.clamp_min(0), slope.clamp_min(0)
