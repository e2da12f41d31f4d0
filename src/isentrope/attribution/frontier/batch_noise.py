"""How much of a step's distance from the frontier is noise of its batch (T14), (T8).

    v_f = P ĝ,     ρ² = |ĝ|²_P,     E|ĝ|²_P = |ḡ|²_P + tr(PΣ)/B

The mean direction P ḡ makes the same changes on average, at the length |ḡ|_P: it reaches
r ρ/|ḡ|_P of its own radius. So r_mean − r of the distance 1 − r is noise, and 1 − r_mean is the
direction's. |ḡ|²_P is estimated from pairs of different groups of U's prompts, and P is held fixed.
"""

from typing import NamedTuple

import torch

from isentrope.attribution.frontier.deleted_groups import DeletedGroups, pairs_of_groups
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.attribution.gradients.groups import assign_groups
from isentrope.attribution.gradients.storage_plan import StoragePlace
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import weighted_products
from isentrope.policy.gradient import weighted_gradients
from isentrope.policy.language_model import Policy
from isentrope.update.step import Step


def mean_square_length(
    policy: Policy, U: Rollouts, step: Step, groups: int, where: StoragePlace = "device"
) -> DeletedGroups:
    """|ḡ|²_P of the mean gradient whose sample the step is. It takes a backward pass over U.

    Args:
        policy: The policy at θ.
        U: The batch of the step.
        step: The step, without a control's correction.
        groups: Groups of U's prompts, 3 or more.
        where: Where their gradients are held.

    Returns:
        The square length; negative where noise hides the gradient.

    Raises:
        ValueError: If the step is of another batch, or has a control's correction.
    """
    step.require_batch(U)
    if "control" in step.components:
        raise ValueError("A control's correction is no mean over the prompts of U.")
    group = assign_groups(U.prompt_index, groups)
    parts = HeldVectors(policy.theta, groups, where)
    for g in range(groups):
        rows = (group == g).nonzero()[:, 0]
        entropies = None if step.entropy_weights is None else step.entropy_weights[rows]
        weights = (step.token_weights[rows], entropies)
        parts.add(g, weighted_gradients(policy, U.select(rows), [weights])[0])
    products = torch.zeros(groups, groups, dtype=torch.float64)
    for name, P in step.preconditioner.items():
        products += weighted_products([parts.rows(name)], P)
    shares = group.bincount(minlength=groups).double() / len(group)
    return DeletedGroups.of(lambda k: pairs_of_groups(products[k][:, k], shares[k]), groups)


class OfTwoBatches(NamedTuple):
    """A number that depends on two batches: as E's groups are left out, and as U's are.

    Attributes:
        over_E: Of all groups of E, then of all but each.
        over_U: Of all groups of U likewise.
    """

    over_E: DeletedGroups
    over_U: DeletedGroups

    @property
    def value(self) -> float:
        """The number of all groups of both."""
        return self.over_E.value

    @property
    def variance(self) -> float:
        """Of independent batches."""
        return self.over_E.variance + self.over_U.variance

    @property
    def degrees_of_freedom(self) -> float:
        """Of the sum of both, by Welch and Satterthwaite."""
        parts = (self.over_E, self.over_U)
        lost = sum(part.variance**2 / part.degrees_of_freedom for part in parts)
        return self.variance**2 / lost


def reached_by_mean(reached: DeletedGroups, length: float, square: DeletedGroups) -> OfTwoBatches:
    """The share of the radius that the mean direction reaches: r ρ/|ḡ|_P.

    Args:
        reached: r of the step.
        length: ρ.
        square: |ḡ|²_P.

    Returns:
        It, as the groups of both batches are left out.
    """
    ratios = length / square.values.sqrt()
    return OfTwoBatches(
        DeletedGroups(reached.values * ratios[0]), DeletedGroups(reached.values[0] * ratios)
    )


def share_of_noise(reached: DeletedGroups, length: float, square: DeletedGroups) -> OfTwoBatches:
    """The share of 1 − r that is noise of the batch: (r_mean − r)/(1 − r).

    Args:
        reached: r of the step.
        length: ρ.
        square: |ḡ|²_P.

    Returns:
        It, likewise.
    """
    excess = length / square.values.sqrt() - 1
    odds = reached.values / (1 - reached.values)
    return OfTwoBatches(DeletedGroups(odds * excess[0]), DeletedGroups(odds[0] * excess))
