"""What every step of one length could do, and where the step taken stands (T14).

The step per unit η is v = v_0 + v_f: v_0 was decided before the batch (momentum and decay), v_f is
free. Its length is ρ² = v_fᵀ P⁻¹ v_f. Every free part of this length makes first-order changes in
the ellipse of g_J and g_H (`ellipse`) around c = (<g_J, v_0>, <g_H, v_0>), and P (α g_J + β g_H)
reaches every point of its edge. The step taken is at r = √(yᵀ G⁻¹ y)/ρ of the radius, with
y = (<g_J, v_f>, <g_H, v_f>).

ρ is known, and so is v, which E is independent of. Errors are a delete-a-group jackknife of the
whole map over E's prompts. A ball of one ρ compares directions and not sizes: a shrunk step reaches
the same r.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from isentrope.attribution.frontier.batch_noise import OfTwoBatches, reached_by_mean, share_of_noise
from isentrope.attribution.frontier.deleted_groups import DeletedGroups
from isentrope.attribution.frontier.ellipse import Ellipse
from isentrope.attribution.frontier.gradient_products import GradientProducts, gradient_products
from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.estimators.reward_change import REWARD
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.saved import Absent
from isentrope.nouns.vectors import Vector, axpy
from isentrope.system.one_line import one_line
from isentrope.update.step import Step

FEWEST_GROUPS = 8
"""Groups of prompts from which the jackknife of the map is used."""

ERRORS_FROM_ZERO = 4.0
"""Errors that the lengths, and the angle's distance from 0 and 180°, must have from zero."""

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


def frontier_of_gradients(
    of_reward: GradientGroups,
    of_entropy: GradientGroups,
    step: Step,
    mean_square: DeletedGroups | None = None,
    confidence: float = 0.95,
) -> Frontier:
    """Say what a step of the same length could do, and how much of it the step does.

    Args:
        of_reward: g_J by groups of prompts of E.
        of_entropy: g_H by the same groups.
        step: The step taken, of another batch than E.
        mean_square: `batch_noise.mean_square_length` of the step; None leaves the noise out.
        confidence: Nominal coverage.

    Returns:
        The frontier.

    Raises:
        ValueError: If the groups differ or there are fewer than eight, or P is of another step.
    """
    shares = of_entropy.shares
    if len(shares) < FEWEST_GROUPS or shares.tolist() != of_reward.shares.tolist():
        raise ValueError(
            f"The frontier needs both gradients by the same groups of prompts, {FEWEST_GROUPS} or "
            "more."
        )
    free = free_part(step)
    length = math.sqrt(square_length(free, step.preconditioner))
    products = gradient_products((of_reward, of_entropy), step.preconditioner, free, step.baseline)
    numbers = _numbers(products, Ellipse(products.gram, length))
    missing = list(_missing(products, of_entropy.prompts))
    shape_known = not missing
    estimates = {
        name: _estimate(
            values,
            of_entropy,
            _unit(name, of_entropy),
            confidence,
            known=shape_known or name in ("centre_reward", "centre_entropy", "reward", "entropy"),
        )
        for name, values in numbers.items()
    }
    if shape_known and math.isnan(numbers["best"].value):
        missing.append(_NONE_KEEPS)
    if mean_square is not None:
        reached = numbers["reached"]
        has_length = mean_square.errors_from_zero > ERRORS_FROM_ZERO
        estimates["reached_by_mean"] = _estimate(
            reached_by_mean(reached, length, mean_square),
            of_entropy,
            "share",
            confidence,
            known=shape_known and has_length,
        )
        distance = DeletedGroups(1 - reached.values)
        estimates["noise"] = _estimate(
            share_of_noise(reached, length, mean_square),
            of_entropy,
            NET_SHARE,
            confidence,
            known=shape_known and has_length and distance.errors_from_zero > ERRORS_FROM_ZERO,
        )
    return Frontier(length=length, missing=tuple(missing), **estimates)


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


def _numbers(products: GradientProducts, ellipse: Ellipse) -> dict[str, DeletedGroups]:
    """The numbers of a frontier by their names, of all groups and of all but each."""
    reward, entropy = products.free.unbind(1)
    fixed_reward, fixed_entropy = products.fixed.unbind(1)
    best_at_step = ellipse.best(entropy)
    values = {
        "reward_reach": ellipse.reach[:, 0],
        "entropy_reach": ellipse.reach[:, 1],
        "cosine": ellipse.cosine,
        "centre_reward": fixed_reward,
        "centre_entropy": fixed_entropy,
        "reward": fixed_reward + reward,
        "entropy": fixed_entropy + entropy,
        "best": fixed_reward + ellipse.best(-fixed_entropy),
        "best_at_step": fixed_reward + best_at_step,
        "lost": best_at_step - reward,
        "reward_for_a_nat": ellipse.reward_for_a_nat(entropy),
        "reached": ellipse.share(products.square),
    }
    return {name: DeletedGroups(numbers) for name, numbers in values.items()}


def _unit(name: str, of_entropy: GradientGroups) -> str:
    """The unit of a number of the frontier."""
    match name:
        case "cosine":
            return "cosine"
        case "reached":
            return "share"
        case "reward_for_a_nat":
            return f"{REWARD} per {of_entropy.sample.functional.unit}"
        case "entropy" | "centre_entropy" | "entropy_reach":
            return of_entropy.unit
        case _:
            return f"{REWARD} per η"


def _estimate(
    number: DeletedGroups | OfTwoBatches,
    gradient: GradientGroups,
    unit: str,
    confidence: float,
    *,
    known: bool,
) -> Estimate:
    """A number with its interval; with none where that is not known to hold."""
    caveats = gradient.sample.trust.caveats
    trusted = caveats.pop("trusted") and known
    return Estimate.from_standard_error(
        number.value,
        math.sqrt(number.variance),
        gradient.prompts,
        unit=unit,
        method="delete-a-group jackknife",
        confidence=confidence,
        degrees_of_freedom=number.degrees_of_freedom,
        trusted=trusted,
        **caveats,
    )


def _missing(products: GradientProducts, prompts: int) -> Iterator[str]:
    """Why the edge is not known: a gradient without a length, or two that are one."""
    lengths = products.gram.diagonal(dim1=1, dim2=2)
    cosine = products.gram[:, 0, 1] / lengths.prod(1).sqrt()
    aspects = {
        "the length of the gradient of reward": lengths[:, 0],
        "the length of the gradient of entropy": lengths[:, 1],
        "the angle of the gradients of reward and entropy": 1 - cosine.abs(),
    }
    for name, values in aspects.items():
        errors = DeletedGroups(values).errors_from_zero
        if errors >= ERRORS_FROM_ZERO:
            continue
        if errors > 0.5:
            needed = f"about {_rounded_up(prompts * (ERRORS_FROM_ZERO / errors) ** 2)} would do"
        else:
            needed = "they do not say how many would do"
        yield (
            f"There is no frontier from {prompts} prompts: {name} is less than "
            f"{ERRORS_FROM_ZERO:g} standard errors from zero, and {needed}."
        )
        return


def _rounded_up(count: float) -> int:
    """A number of prompts with two digits, not below it."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit
