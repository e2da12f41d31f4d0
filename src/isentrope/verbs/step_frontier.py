"""The gradients of reward and entropy that the frontier of a checkpoint's step needs."""

from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.gradients.groups import gradients_by_group, of_reward
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.verbs.prepare import Prepared

GROUPS_OF_ANGLE = 16
"""Groups of E's prompts for the angle of the gradients of reward and entropy."""


def pair_gradients(ready: Prepared, sample: ScoredBatch, E: Rollouts) -> GradientPair:
    """The gradients of reward and entropy by the same groups of E's prompts."""
    where = ready.gradients.storage.where
    samples = [sample, of_reward(sample, E.rewards)]
    g_H, g_J = gradients_by_group(ready.policy, E, samples, GROUPS_OF_ANGLE, where)
    return GradientPair(g_J, g_H, ready.step.preconditioner)
