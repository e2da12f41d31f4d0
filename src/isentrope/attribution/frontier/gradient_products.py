"""Inner products of the gradients of reward and entropy, without the square of their noise (T14).

    <a, P b> ≈ Σ_{g≠g'} <a_g, P b_g'> / (1 − Σ_g w_g²),     w_g the share of the samples in g

Both gradients are sums over the same groups of prompts of E. Products with parts of a step are
linear in them and need no pairs; the product y yᵀ of two of those does.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from isentrope.attribution.frontier.deleted_groups import kept_groups, pairs_of_groups
from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.nouns.vectors import Vector, weighted_products


class GradientProducts(NamedTuple):
    """Inner products for all groups of prompts, then for all but each. J comes before H.

    Attributes:
        gram: (1 + G, 2, 2) of the gradients of J and of H, in the metric P.
        free: (1 + G, 2) y, with the free part of a step.
        square: (1 + G, 2, 2) y yᵀ.
        fixed: (1 + G, 2) c, with the part that was decided before the batch.
    """

    gram: Tensor
    free: Tensor
    square: Tensor
    fixed: Tensor


def gradient_products(
    gradients: tuple[GradientGroups, GradientGroups],
    preconditioner: Vector,
    free: Vector,
    fixed: Vector,
) -> GradientProducts:
    """All inner products, from those of the groups.

    Args:
        gradients: g_J and g_H by the same groups of prompts.
        preconditioner: P, diagonal.
        free: The free part of a step.
        fixed: What was decided before the batch.

    Returns:
        The products.
    """
    shares = gradients[0].shares
    every = kept_groups(len(shares))
    inner = gram_of_groups(gradients, preconditioner)
    along_free = torch.stack([gradient.along(free) for gradient in gradients])  # (2, G)
    along_fixed = torch.stack([gradient.along(fixed) for gradient in gradients])
    outer = along_free[:, None, :, None] * along_free[None, :, None, :]  # (2, 2, G, G)
    return GradientProducts(
        gram=torch.stack([pairs_of_groups(inner[..., k, :][..., k], shares[k]) for k in every]),
        free=torch.stack([along_free[:, k].sum(1) / shares[k].sum() for k in every]),
        square=torch.stack([pairs_of_groups(outer[..., k, :][..., k], shares[k]) for k in every]),
        fixed=torch.stack([along_fixed[:, k].sum(1) / shares[k].sum() for k in every]),
    )


def gram_of_groups(
    gradients: tuple[GradientGroups, GradientGroups], preconditioner: Vector
) -> Tensor:
    """(2, 2, G, G) inner products of all parts of two gradients in the metric P."""
    count = len(gradients[0].parts)
    inner = torch.zeros(2 * count, 2 * count, dtype=torch.float64)
    for name, P in preconditioner.items():  # one parameter at a time: all parts together are large
        inner += weighted_products([gradient.parts.rows(name) for gradient in gradients], P)
    return inner.view(2, count, 2, count).transpose(1, 2)
