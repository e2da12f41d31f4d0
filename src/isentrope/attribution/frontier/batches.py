"""The frontier of a step, from the batch it is measured on and the batch it is made of."""

from isentrope.attribution.frontier.batch_noise import mean_square_length
from isentrope.attribution.frontier.edge import FEWEST_GROUPS, Edge
from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.gradients.groups import gradients_by_group, of_reward
from isentrope.attribution.gradients.storage_plan import StoragePlace
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import score_batch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.update.step import Step


def frontier(
    policy: Policy,
    E: Rollouts,
    U: Rollouts,
    step: Step,
    options: EstimatorOptions = EstimatorOptions(),
    *,
    groups: int = 16,
    where: StoragePlace = "device",
) -> Frontier:
    """Say what any step of the same length could do to reward and entropy (T14).

    It takes a forward pass over E with two backward passes, and a backward pass over U.

    Args:
        policy: The policy at θ.
        E: An unfiltered batch with rewards, of other prompts than U.
        U: The batch of the step.
        step: The step of the optimizer on U.
        options: The functional, "per_token" or "per_sequence", and the confidence.
        groups: Groups of E's prompts that errors are over, 8 or more; at most as many of U's.
        where: Where the gradients of the groups are held: "device", "cpu" or "disk".

    Returns:
        The frontier, changes per unit η. Without the noise of the batch where U has fewer than
        eight prompts, or a control corrected the step.

    Raises:
        ValueError: If E has no rewards, or there are fewer than eight groups.
    """
    sample = score_batch(policy, E, options)
    of_entropy, reward = gradients_by_group(
        policy, E, [sample, of_reward(sample, E.rewards)], groups, where
    )
    edge = Edge.of_step(GradientPair(reward, of_entropy, step.preconditioner), step)
    return frontier_of_batch(policy, edge, U, step, where, options.confidence)


def frontier_of_batch(
    policy: Policy,
    edge: Edge,
    U: Rollouts,
    step: Step,
    where: StoragePlace = "device",
    confidence: float = 0.95,
) -> Frontier:
    """The frontier of a step, with how much of the distance is noise of its batch.

    Args:
        policy: The policy at θ.
        edge: That of the step.
        U: The batch of the step.
        step: The step of the optimizer on U.
        where: Where gradients of groups of U are held.
        confidence: Nominal coverage.

    Returns:
        The frontier; without the noise where U has fewer than eight prompts, or a control corrected
        the step.
    """
    groups = min(len(edge.gradients.shares), U.n_prompts)
    if groups < FEWEST_GROUPS or "control" in step.components:
        return frontier_of_step(edge, step, confidence=confidence)
    return frontier_of_step(
        edge,
        step,
        lambda: mean_square_length(policy, U, step, groups, where),
        confidence,
    )
