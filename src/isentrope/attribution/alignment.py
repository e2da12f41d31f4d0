"""How far a step that earns reward must spend entropy: the angle of their gradients (T10).

    cos_P(g_J, g_H) = <g_J, P g_H> / √(<g_J, P g_J> <g_H, P g_H>)

−1: every step along P g_J spends as much entropy as can be had; 0: reward has a price in entropy by
chance only. Each inner product is of pairs of different groups of prompts (`GradientPair`), so that
the noise of a gradient is not taken for its length. The error is a delete-a-group jackknife of the
cosine.
"""

import math

from isentrope.attribution.frontier.deleted_groups import DeletedGroups
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.nouns.estimate import Estimate

_NO_LENGTH = (
    "The gradient of {} is not distinguishable from noise on this batch: it has no direction."
)


def alignment(gradients: GradientPair, confidence: float = 0.95) -> Estimate:
    """cos_P of the gradients of expected reward and of entropy.

    Args:
        gradients: g_J and g_H by groups of prompts, with P.
        confidence: Nominal coverage.

    Returns:
        The cosine; NaN where a gradient is not distinguishable from noise.

    Raises:
        ValueError: If the groups differ, or there are fewer than three.
    """
    if len(gradients.shares) < 3 or not gradients.same_groups:
        raise ValueError("The angle needs both gradients by the same groups, three or more.")
    gram = gradients.gram
    lengths = gram.diagonal(dim1=1, dim2=2)  # (1 + G, 2): <g_J, P g_J> and <g_H, P g_H>
    cosine = DeletedGroups(gram[:, 0, 1] / lengths.where(lengths > 0, math.nan).prod(1).sqrt())
    noisy = [name for name, x in zip(("reward", "entropy"), lengths.T, strict=True) if x.min() <= 0]
    sides = (gradients.of_reward, gradients.of_entropy)
    trusted = all(side.sample.trust.verdict == "trust" for side in sides)
    return Estimate.from_standard_error(
        cosine.value,
        math.sqrt(cosine.variance),
        gradients.of_entropy.prompts,
        unit="cosine",
        method="delete-a-group jackknife",
        confidence=confidence,
        warnings=tuple(_NO_LENGTH.format(name) for name in noisy),
        trusted=trusted and not noisy,
        degrees_of_freedom=len(gradients.shares) - 1 if noisy else cosine.degrees_of_freedom,
    )
