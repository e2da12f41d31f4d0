"""How far a step that earns reward must spend entropy: the angle of their gradients (T10).

    cos_P(g_J, g_H) = <g_J, P g_H> / √(<g_J, P g_J> <g_H, P g_H>)

−1: every step along P g_J spends as much entropy as can be had; 0: reward has a price in entropy by
chance only. Each inner product is of pairs of different groups of prompts, so that the noise of a
gradient is not taken for its length:

    <a, P b> ≈ Σ_{g≠g'} <a_g, P b_g'> / (1 − Σ_g w_g²),     w_g the share of the samples in g

The error is a delete-a-group jackknife of the cosine.
"""

import math

import torch
from torch import Tensor

from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import freedom_of_groups
from isentrope.nouns.vectors import Vector, weighted_products

_NO_LENGTH = (
    "The gradient of {} is not distinguishable from noise on this batch: it has no direction."
)


def alignment(
    of_reward: GradientGroups,
    of_entropy: GradientGroups,
    preconditioner: Vector,
    confidence: float = 0.95,
) -> Estimate:
    """cos_P of the gradients of expected reward and of entropy.

    Args:
        of_reward: g_J by groups of prompts.
        of_entropy: g_H by the same groups.
        preconditioner: P, diagonal.
        confidence: Nominal coverage.

    Returns:
        The cosine; NaN where a gradient is not distinguishable from noise.

    Raises:
        ValueError: If the groups differ, or there are fewer than three.
    """
    shares = of_entropy.shares
    if len(shares) < 3 or not torch.equal(shares, of_reward.shares):
        raise ValueError("The angle needs both gradients by the same groups, three or more.")
    G = len(shares)
    products = torch.zeros(2 * G, 2 * G, dtype=torch.float64)
    for name, P in preconditioner.items():  # one parameter at a time: all parts together are large
        products += weighted_products([x.parts.rows(name) for x in (of_reward, of_entropy)], P)
    blocks = products.view(2, G, 2, G).transpose(1, 2)  # (2, 2, G, G)
    every = torch.arange(G)
    kept = [every, *(every[every != g] for g in every)]
    products_kept = torch.stack([_products(blocks[:, :, k][..., k], shares[k]) for k in kept])
    lengths = products_kept.diagonal(dim1=1, dim2=2)  # (1 + G, 2): <g_J, P g_J> and <g_H, P g_H>
    whole, *rest = products_kept[:, 0, 1] / lengths.where(lengths > 0, math.nan).prod(1).sqrt()
    influences = (1 - 1 / G) * (torch.stack(rest).mean() - torch.stack(rest))
    noisy = [name for name, x in zip(("reward", "entropy"), lengths.T, strict=True) if x.min() <= 0]
    trusted = all(x.sample.trust.verdict == "trust" for x in (of_reward, of_entropy))
    return Estimate.from_standard_error(
        float(whole),
        math.sqrt(G / (G - 1)) * float(influences.norm()),
        of_entropy.prompts,
        unit="cosine",
        method="delete-a-group jackknife",
        confidence=confidence,
        warnings=tuple(_NO_LENGTH.format(name) for name in noisy),
        trusted=trusted and not noisy,
        degrees_of_freedom=G - 1 if noisy else freedom_of_groups(influences),
    )


def _products(blocks: Tensor, shares: Tensor) -> Tensor:
    """(2, 2) inner products of two gradients, without pairs of one group, from those of groups."""
    shares = shares / shares.sum()
    unlike = blocks.sum((2, 3)) - blocks.diagonal(dim1=2, dim2=3).sum(2)
    return unlike / (1 - shares.square().sum())
