"""The gradients of reward and entropy that the frontier of a checkpoint's step needs."""

from isentrope.attribution.frontier.edge import PROMPTS_OF_CHANGES
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.gradients.groups import gradients_by_group, of_reward
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.verbs.prepare import Prepared

GROUPS_OF_ANGLE = 16
"""Groups of E's prompts for the angle of the gradients of reward and entropy."""


def too_few_prompts(E: Rollouts) -> tuple[str, ...]:
    """Why E has no groups for the frontier, in a sentence; none where it has."""
    if E.n_prompts >= GROUPS_OF_ANGLE:
        return ()
    return (
        "There is no frontier of the step, and no angle of the gradients of reward and entropy: "
        f"E has {E.n_prompts} prompts, fewer than the {GROUPS_OF_ANGLE} groups that errors are "
        f"over. Set batch_config.B_E to {PROMPTS_OF_CHANGES} or more.",
    )


def pair_gradients(ready: Prepared, sample: ScoredBatch, E: Rollouts) -> GradientPair:
    """The gradients of reward and entropy by the same groups of E's prompts."""
    where = ready.gradients.storage.where
    samples = [sample, of_reward(sample, E.rewards)]
    g_H, g_J = gradients_by_group(ready.policy, E, samples, GROUPS_OF_ANGLE, where)
    return GradientPair(g_J, g_H, ready.step.preconditioner)
