"""The edge of what a step of one length could do, and where its free parts stand (T14).

The step per unit η is v = v_0 + v_f: v_0 was decided before the batch (momentum and decay), v_f is
free. Its length is ρ² = v_fᵀ P⁻¹ v_f. Every free part of this length makes first-order changes in
the ellipse of g_J and g_H (`ellipse`) around c = (<g_J, v_0>, <g_H, v_0>), and P (α g_J + β g_H)
reaches every point of its edge. A free part is at r = √(yᵀ G⁻¹ y)/ρ of the radius, with
y = (<g_J, v_f>, <g_H, v_f>).

ρ is known, and so is v, which E is independent of. Errors are a delete-a-group jackknife of the
whole map over E's prompts.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from isentrope.attribution.frontier.deleted_groups import DeletedGroups
from isentrope.attribution.frontier.ellipse import Ellipse
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.estimators.reward_change import REWARD
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.vectors import Vector, axpy
from isentrope.update.step import Step

FEWEST_GROUPS = 8
"""Groups of prompts from which the jackknife of the map is used."""

ERRORS_FROM_ZERO = 4.0
"""Errors that the lengths, and the angle's distance from 0 and 180°, must have from zero."""

ROOM_FROM_ZERO = 3.0
"""Errors that an entropy must be below the most that the length brings, where the edge is steep."""

PROMPTS_OF_CHANGES = 128
"""Prompts of E from which the changes that a step, or its momentum, makes have intervals: groups of
fewer than eight responses are not nearly normal, and intervals over them cover too little
(docs/results/frontier_coverage.md)."""

NEED_ROOM = ("best_at_step", "lost", "reward_for_a_nat")
"""Numbers of the edge at the entropy of a free part."""

STRAIN_OF_REACH = 0.2
"""What 1/df of |g_H|_P ρ has in addition: a batch that underrates the length of g_H underrates its
error too, so that near the switch such batches are shown (docs/results/frontier_coverage.md)."""


@dataclass(frozen=True)
class Edge:
    """The edge of the free parts of one length, from groups of prompts of E.

    Attributes:
        gradients: g_J and g_H, with P of the step.
        length: ρ.
        fixed: (2, G) products of the gradients with what was decided before the batch.
    """

    gradients: GradientPair
    length: float
    fixed: Tensor

    @classmethod
    def of_step(cls, gradients: GradientPair, step: Step) -> "Edge":
        """That of the steps with the length of a step's free part.

        Args:
            gradients: g_J and g_H, by eight groups of prompts or more.
            step: The step, of another batch than E.

        Returns:
            The edge.

        Raises:
            ValueError: If the groups differ or there are fewer than eight, or P is of another step.
        """
        require_groups(len(gradients.shares), gradients.of_entropy.prompts)
        if not gradients.same_groups:
            raise ValueError("The frontier needs both gradients by the same groups of prompts.")
        length = math.sqrt(square_length(free_part(step), gradients.preconditioner))
        return cls(gradients, length, gradients.along(step.baseline))

    @cached_property
    def ellipse(self) -> Ellipse:
        """Of all groups, then of all but each."""
        return Ellipse(self.gradients.gram, self.length)

    def shape(self) -> dict[str, DeletedGroups]:
        """The numbers that no free part changes, by their names."""
        fixed_reward, fixed_entropy = self.gradients.changes(self.fixed).unbind(1)
        reach = self.ellipse.reach
        return {
            "reward_reach": DeletedGroups(reach[:, 0]),
            "entropy_reach": DeletedGroups(reach[:, 1]),
            "cosine": DeletedGroups(self.ellipse.cosine),
            "centre_reward": DeletedGroups(fixed_reward),
            "centre_entropy": DeletedGroups(fixed_entropy),
            # the free part gives back the entropy that what was decided before the batch loses
            "best": DeletedGroups(fixed_reward + self.ellipse.best(-fixed_entropy)),
        }

    def place(self, along: Tensor) -> dict[str, DeletedGroups]:
        """Where a free part of the length stands, by the names of the numbers.

        Args:
            along: (2, G) products of the gradients with it.

        Returns:
            Changes of the whole step, and how far they are from the edge.
        """
        fixed_reward, fixed_entropy = self.gradients.changes(self.fixed).unbind(1)
        reward, entropy = self.gradients.changes(along).unbind(1)
        best = self.ellipse.best(entropy)
        return {
            "reward": DeletedGroups(fixed_reward + reward),
            "entropy": DeletedGroups(fixed_entropy + entropy),
            "best_at_step": DeletedGroups(fixed_reward + best),
            "lost": DeletedGroups(best - reward),
            "reward_for_a_nat": DeletedGroups(self.ellipse.reward_for_a_nat(entropy)),
            "reached": DeletedGroups(self.ellipse.share(self.gradients.squares(along))),
        }

    def below_most(self, entropy: Tensor) -> float:
        """How far an entropy of the free part is below the most that its length brings, in errors.

        Args:
            entropy: (1 + G,) h.

        Returns:
            |g_H|_P ρ − h; below zero where the length does not bring as much.
        """
        return DeletedGroups(self.ellipse.reach[:, 1] - entropy).errors_from_zero

    def has_room(self, along: Tensor) -> bool:
        """Whether a free part is clearly below the most entropy that its length brings.

        Args:
            along: (2, G) products of the gradients with it.

        Returns:
            False nearer to it than its errors, where the edge is steep.
        """
        return self.below_most(self.gradients.changes(along)[:, 1]) >= ROOM_FROM_ZERO

    @property
    def has_changes(self) -> bool:
        """Whether the changes that a part of a step makes have intervals."""
        return self.gradients.of_entropy.prompts >= PROMPTS_OF_CHANGES

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Why the edge is not known: a gradient without a length, or two that are one."""
        prompts = self.gradients.of_entropy.prompts
        if self.length == 0:
            return ("There is no frontier: the batch of the step moves nothing.",)
        if not self.gradients.gram[:, 0, 0].any():
            return ("There is no frontier: all responses of E earn the same reward.",)
        lengths = self.gradients.gram.diagonal(dim1=1, dim2=2)
        aspects = {
            "the length of the gradient of reward": lengths[:, 0],
            "the length of the gradient of entropy": lengths[:, 1],
            "the angle of the gradients of reward and entropy": 1 - self.ellipse.cosine.abs(),
        }
        for name, values in aspects.items():
            errors = DeletedGroups(values).errors_from_zero
            if errors >= ERRORS_FROM_ZERO:
                continue
            needed = "they do not say how many would do"
            if errors > 0.5:
                count = _round_up(prompts * (ERRORS_FROM_ZERO / errors) ** 2)
                needed = f"about {count} would do"
            sentence = (
                f"There is no frontier from {prompts} prompts: {name} is less than "
                f"{ERRORS_FROM_ZERO:g} standard errors from zero, and {needed}."
            )
            return (sentence,)
        return ()

    def estimate(
        self,
        number: DeletedGroups,
        unit: str,
        confidence: float,
        *,
        has_interval: bool,
        strain: float = 0.0,
    ) -> Estimate:
        """A number with its interval; with none where that may not hold."""
        caveats = self.gradients.of_entropy.sample.trust.caveats
        trusted = caveats.pop("trusted") and has_interval
        caveats["strain"] = caveats.get("strain", 0.0) + strain
        return Estimate.from_standard_error(
            number.value,
            math.sqrt(number.variance),
            self.gradients.of_entropy.prompts,
            unit=unit,
            method="delete-a-group jackknife",
            confidence=confidence,
            degrees_of_freedom=number.degrees_of_freedom,
            trusted=trusted,
            **caveats,
        )

    def unit(self, name: str) -> str:
        """The unit of a number, by its name."""
        match name:
            case "cosine":
                return "cosine"
            case "reached":
                return "share"
            case "reward_for_a_nat":
                unit = self.gradients.of_entropy.sample.functional.unit
                return f"{REWARD} per {unit.replace('nats', 'nat')}"
            case "entropy" | "centre_entropy" | "entropy_reach":
                return self.gradients.of_entropy.unit
            case _:
                return f"{REWARD} per η"


def require_groups(groups: int, prompts: int) -> None:
    """Refuse groups of prompts that are too few for the frontier, or without a prompt.

    Args:
        groups: Of E's prompts.
        prompts: Prompt draws of E.

    Raises:
        ValueError: If there are fewer than eight groups, or not a prompt for each.
    """
    if groups < FEWEST_GROUPS or prompts < groups:
        raise ValueError(
            f"The frontier needs {FEWEST_GROUPS} groups of E's prompts or more, and a prompt draw "
            f"for each, got {groups} groups and {prompts} prompt draws: give a larger E, or "
            "other groups."
        )


def free_part(step: Step) -> Vector:
    """v_f: what the batch decides of a step, a control's correction included."""
    gradient = step.components["gradient"]
    control = step.components.get("control")
    return gradient if control is None else axpy(1.0, control, gradient)


def square_length(part: Vector, preconditioner: Vector) -> float:
    """dᵀ P⁻¹ d.

    Args:
        part: d, a part of a step.
        preconditioner: P of that step.

    Returns:
        The square of its length.

    Raises:
        ValueError: If it moves a parameter that P holds still: P is that of another step.
    """
    total = 0.0
    for name, P in preconditioner.items():
        moving = P > 0
        if bool((part[name][~moving] != 0).any()):
            raise ValueError(f"{name} moves where P is 0: the step has the P of another step.")
        total += float((part[name][moving].double().square() / P[moving].double()).sum())
    return total


def _round_up(count: float) -> int:
    """A number of prompts with two digits, not below it."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit
