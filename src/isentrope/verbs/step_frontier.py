"""The frontier of a checkpoint's step, and the angle of its two gradients (T10), (T14)."""

from torch import Tensor

from isentrope.attribution.frontier.edge import PROMPTS_OF_CHANGES, Edge
from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.gradient_products import GradientPair, alignment
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.update.step import Step
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


def edge_of(ready: Prepared, step: Step, sample: ScoredBatch, E: Rollouts) -> Edge:
    """The edge of the free parts with the length of a step's, from groups of E's prompts.

    Args:
        ready: The checkpoint.
        step: Its step, or the one without a control.
        sample: E as scored.
        E: The same, with rewards, and 16 prompts or more.

    Returns:
        The edge, with the gradients of reward and entropy in the metric of the step.
    """
    where = ready.gradients.storage.where
    P = step.preconditioner
    gradients = GradientPair.on_batch(ready.policy, E, sample, P, GROUPS_OF_ANGLE, where)
    return Edge.of_step(gradients, step)


def compare_gradients(
    ready: Prepared, sample: ScoredBatch, rewards: Tensor
) -> tuple[Estimate, Frontier]:
    """The angle of the gradients of reward and entropy, and the frontier of the step.

    Args:
        ready: The checkpoint, with 16 prompts in E or more.
        sample: E as scored.
        rewards: (n,) of E.

    Returns:
        The cosine and the frontier.
    """
    edge = edge_of(ready, ready.step, sample, ready.E.with_columns(rewards=rewards))
    confidence = ready.config.estimator.confidence
    frontier = frontier_of_step(edge, ready.step, confidence)
    return alignment(edge.gradients, confidence), frontier
