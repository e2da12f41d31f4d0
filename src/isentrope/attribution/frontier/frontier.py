"""What every step of one length could do, and where the step taken stands (T14).

The step taken has the free part v_f, and is at r of the radius of the ellipse that the free parts
of its length fill (`edge`). A ball of one ρ compares directions and not sizes: a shrunk step
reaches the same r.
"""

from dataclasses import dataclass

from isentrope.attribution.frontier.edge import (
    NEED_ROOM,
    PROMPTS_OF_CHANGES,
    ROOM_FROM_ZERO,
    STRAIN_OF_REACH,
    Edge,
    free_part,
)
from isentrope.nouns.estimate import Estimate
from isentrope.system.one_line import one_line
from isentrope.update.step import Step

CHANGES = ("centre_reward", "centre_entropy", "reward", "entropy")
"""Numbers that are linear in the gradients, and need no edge."""

_FEW_PROMPTS = (
    "From {} prompts the place of the step on its frontier, and that of what was decided before "
    f"the batch (momentum and decay), have no interval: {PROMPTS_OF_CHANGES} would do."
)
_NONE_KEEPS = (
    "No step of this length keeps entropy: what was decided before the batch (momentum and decay) "
    "loses more than the free part can give back."
)
_UNKNOWN_WHETHER = (
    "Whether a step of this length keeps entropy is not known from {} prompts: what was decided "
    "before the batch (momentum and decay) loses about as much as the free part can give back."
)
_NEAR_THE_END = (
    "What the step loses against the edge is not known from {} prompts: its free part brings "
    "nearly as much entropy as its length can."
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
        best: The largest δJ of a step that loses no entropy; without an interval where none of this
            length keeps it, or that is not known.
        best_at_step: The largest δJ of a step that keeps at least as much entropy as the step.
        lost: `best_at_step` − `reward`.
        reward_for_a_nat: What a nat less would earn along the edge, at the step's δH; 0 where the
            largest δJ of all keeps as much entropy.
        reached: r, the share of the radius that the step reaches.
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
    missing: tuple[str, ...] = ()

    @property
    def none_keeps_entropy(self) -> bool:
        """Whether it is known that no step of this length keeps entropy."""
        return _NONE_KEEPS in self.missing

    def __repr__(self) -> str:
        return one_line(
            self,
            f"the step reaches {self.reached} of the radius",
            f"at its entropy a step could earn {self.lost} more",
        )


def frontier_of_step(
    edge: Edge,
    step: Step,
    confidence: float = 0.95,
) -> Frontier:
    """Say what a step of the same length could do, and how much of it the step does.

    Args:
        edge: That of the step (`Edge.of_step`).
        step: The step taken.
        confidence: Nominal coverage.

    Returns:
        The frontier.
    """
    along = edge.gradients.along(free_part(step))
    numbers = edge.shape() | edge.place(along)
    missing = list(edge.missing)
    unknown = {*numbers} - {*CHANGES} if missing else set[str]()
    prompts = edge.gradients.of_entropy.prompts
    if not missing:
        fixed_entropy = edge.gradients.changes(edge.fixed)[:, 1]
        room = edge.below_most(-fixed_entropy)
        if not room >= ROOM_FROM_ZERO:
            unknown.add("best")
            none_keeps = room <= -ROOM_FROM_ZERO
            missing.append(_NONE_KEEPS if none_keeps else _UNKNOWN_WHETHER.format(prompts))
        if not edge.has_room(along):
            unknown.update(NEED_ROOM)
            missing.append(_NEAR_THE_END.format(prompts))
    if not edge.has_changes:
        unknown.update(CHANGES)
        missing.append(_FEW_PROMPTS.format(prompts))
    estimates = {
        name: edge.estimate(
            values,
            edge.unit(name),
            confidence,
            has_interval=name not in unknown,
            strain=STRAIN_OF_REACH if name == "entropy_reach" else 0.0,
        )
        for name, values in numbers.items()
    }
    return Frontier(length=edge.length, missing=tuple(missing), **estimates)
