"""What every step of one length could do, and where the step taken stands (T14).

The step taken has the free part v_f, and is at r of the radius of the ellipse that the free parts
of its length fill (`edge`). A ball of one ρ compares directions and not sizes: a shrunk step
reaches the same r.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from isentrope.attribution.frontier.batch_noise import reached_by_mean, share_of_noise
from isentrope.attribution.frontier.deleted_groups import DeletedGroups
from isentrope.attribution.frontier.edge import (
    ERRORS_FROM_ZERO,
    STRAIN_OF_REACH,
    Edge,
    free_part,
)
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.saved import Absent
from isentrope.system.one_line import one_line
from isentrope.update.step import Step

ALWAYS_KNOWN = ("centre_reward", "centre_entropy", "reward", "entropy")
"""Numbers that are linear in the gradients, and need no edge."""

_NONE_KEEPS = (
    "No step of this length keeps entropy: what was decided before the batch (momentum and decay) "
    "loses more than the free part can give back."
)


@dataclass(frozen=True)
class Frontier:
    """The edge of what a step of one length could do, and where the step taken stands.

    Changes are of first order, per unit η, of the whole step. A number whose interval is not known
    to hold has none; `missing` says why.

    Attributes:
        length: ρ, the length of the free part in the metric P⁻¹.
        reward_reach: |g_J|_P ρ, the largest change of J that a free part could bring.
        entropy_reach: |g_H|_P ρ, the largest change of entropy that one could bring.
        cosine: cos_P(g_J, g_H).
        centre_reward: δJ of what was decided before the batch.
        centre_entropy: δH of it.
        reward: δJ of the step taken.
        entropy: δH of the step taken.
        best: The largest δJ of a step that loses no entropy; NaN where none of this length keeps
            it.
        best_at_step: The largest δJ of a step that keeps at least as much entropy as the step.
        lost: `best_at_step` − `reward`.
        reward_for_a_nat: What a nat less would earn along the edge, at the step's δH; 0 where the
            largest δJ of all keeps as much entropy.
        reached: r, the share of the radius that the step reaches.
        reached_by_mean: The share that its mean direction reaches, without the noise of the batch;
            None where that is not known.
        noise: The share of 1 − r that is noise of the batch.
        missing: Sentences on what is not given.
    """

    length: float
    reward_reach: Estimate
    entropy_reach: Estimate
    cosine: Estimate
    centre_reward: Estimate
    centre_entropy: Estimate
    reward: Estimate
    entropy: Estimate
    best: Estimate
    best_at_step: Estimate
    lost: Estimate
    reward_for_a_nat: Estimate
    reached: Estimate
    reached_by_mean: Absent[Estimate] = None
    noise: Absent[Estimate] = None
    missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return one_line(
            self,
            f"the step reaches {self.reached} of the radius",
            f"at its entropy a step could earn {self.lost} more",
        )


def frontier_of_step(
    edge: Edge,
    step: Step,
    mean_square: Callable[[], DeletedGroups] | None = None,
    confidence: float = 0.95,
) -> Frontier:
    """Say what a step of the same length could do, and how much of it the step does.

    Args:
        edge: That of the step (`Edge.of_step`).
        step: The step taken.
        mean_square: Computes `batch_noise.mean_square_length` of the step, and is called where the
            edge is known; None leaves the noise out.
        confidence: Nominal coverage.

    Returns:
        The frontier.
    """
    numbers = edge.shape() | edge.place(edge.gradients.along(free_part(step)))
    missing = list(edge.missing)
    shape_known = not missing
    estimates = {
        name: edge.estimate(
            values,
            edge.unit(name),
            confidence,
            known=shape_known or name in ALWAYS_KNOWN,
            strain=STRAIN_OF_REACH if name == "entropy_reach" else 0.0,
        )
        for name, values in numbers.items()
    }
    if shape_known and math.isnan(numbers["best"].value):
        missing.append(_NONE_KEEPS)
    if mean_square is not None and shape_known:
        square = mean_square()
        reached = numbers["reached"]
        has_length = square.errors_from_zero > ERRORS_FROM_ZERO
        estimates["reached_by_mean"] = edge.estimate(
            reached_by_mean(reached, edge.length, square), "share", confidence, known=has_length
        )
        distance = DeletedGroups(1 - reached.values)
        estimates["noise"] = edge.estimate(
            share_of_noise(reached, edge.length, square),
            NET_SHARE,
            confidence,
            known=has_length and distance.errors_from_zero > ERRORS_FROM_ZERO,
        )
    return Frontier(length=edge.length, missing=tuple(missing), **estimates)
