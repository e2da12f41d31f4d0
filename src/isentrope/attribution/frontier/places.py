"""Where other free parts of one length stand on the frontier of a step (T14).

A control makes another free part d of the same batch. Scaled to the length ρ of the plain step's it
is one of the parts that the ellipse is of, and makes the changes

    y = (ρ/|d|) (<g_J, d>, <g_H, d>),     |d|² = dᵀ P⁻¹ d

in the metric of the plain step. Momentum and decay stay. Its r, and what it loses of δJ against the
edge at its own δH, are compared with those of the plain step by the same groups of prompts, so that
the noise that both share cancels.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from isentrope.attribution.frontier.deleted_groups import DeletedGroups
from isentrope.attribution.frontier.edge import Edge, square_length
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.freedom import t_quantile
from isentrope.nouns.vectors import Vector


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a step stands once its free part has the length of the plain step's.

    Changes are of first order, per unit η, of the whole step.

    Attributes:
        length: Of its free part before that, in lengths of the plain step's.
        reached: r, the share of the radius that it reaches.
        reached_over_plain: r less that of the plain step.
        reward: δJ.
        entropy: δH.
        lost: What it loses of δJ against the edge at its own δH.
        lost_over_plain: That less what the plain step loses at its own.
    """

    length: float
    reached: Estimate
    reached_over_plain: Estimate
    reward: Estimate
    entropy: Estimate
    lost: Estimate
    lost_over_plain: Estimate


def place_part(edge: Edge, part: Vector, plain: Tensor, confidence: float = 0.95) -> Place:
    """Place a free part on the frontier of a step.

    Args:
        edge: That of the plain step.
        part: d, another free part of the same batch.
        plain: (2, G) products of the gradients with the plain step's free part.
        confidence: Nominal coverage.

    Returns:
        Its place.

    Raises:
        ValueError: If the part is zero, or moves what the plain step holds still.
    """
    length = math.sqrt(square_length(part, edge.gradients.preconditioner))
    if length == 0:
        raise ValueError("A free part of zeros has no direction.")
    along = edge.length / length * edge.gradients.along(part)
    numbers = edge.place(along)
    of_plain = edge.place(plain)
    has_edge = not edge.missing
    has_loss = has_edge and edge.has_room(along)
    shown = {
        "reward": edge.has_changes,
        "entropy": edge.has_changes,
        "reached": has_edge,
        "lost": has_loss,
    }

    def estimate(name: str) -> Estimate:
        unit = edge.unit(name)
        return edge.estimate(numbers[name], unit, confidence, has_interval=shown[name])

    def compared(name: str, unit: str) -> Estimate:
        gap = DeletedGroups(numbers[name].values - of_plain[name].values)
        both_shown = shown[name] and (name != "lost" or edge.has_room(plain))
        return edge.estimate(gap, unit, confidence, has_interval=both_shown)

    return Place(
        length=length / edge.length,
        reached=estimate("reached"),
        reached_over_plain=compared("reached", NET_SHARE),
        reward=estimate("reward"),
        entropy=estimate("entropy"),
        lost=estimate("lost"),
        lost_over_plain=compared("lost", edge.unit("lost")),
    )


def widened(number: Estimate, confidence: float) -> Estimate:
    """A number of a place with the interval of a larger coverage.

    Args:
        number: `reached`, or a difference from the plain step, with its t-interval.
        confidence: The coverage, where the place was chosen among several.

    Returns:
        The number; unchanged where it has no degrees of freedom.
    """
    if number.degrees_of_freedom is None:
        return number
    half = t_quantile(number.degrees_of_freedom, confidence) * number.se
    low = min(number.ci_low, number.value - half)
    high = max(number.ci_high, number.value + half)
    return replace(number, ci_low=low, ci_high=high)
