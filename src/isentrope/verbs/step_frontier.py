"""The frontier of a checkpoint's step, and the gradients of reward and entropy that it needs."""

from isentrope.attribution.frontier.batches import frontier_of_batch
from isentrope.attribution.frontier.edge import Edge
from isentrope.attribution.frontier.frontier import Frontier
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.gradients.groups import gradients_by_group, of_reward
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.update.step import Step
from isentrope.verbs.prepare import Prepared

GROUPS_OF_ANGLE = 16
"""Groups of E's prompts for the angle of the gradients of reward and entropy."""


def pair_gradients(ready: Prepared, sample: ScoredBatch, E: Rollouts) -> GradientPair:
    """The gradients of reward and entropy by the same groups of E's prompts."""
    where = ready.gradients.storage.where
    samples = [sample, of_reward(sample, E.rewards)]
    g_H, g_J = gradients_by_group(ready.policy, E, samples, GROUPS_OF_ANGLE, where)
    return GradientPair(g_J, g_H, ready.step.preconditioner)


def place_step(ready: Prepared, edge: Edge, step: Step) -> Frontier:
    """Where a step on U stands, and how much of its distance is noise of U."""
    where = ready.gradients.storage.where
    confidence = ready.estimator.confidence
    return frontier_of_batch(ready.policy, edge, ready.U, step, where, confidence)
