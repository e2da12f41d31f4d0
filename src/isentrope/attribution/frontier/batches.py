"""The frontier of a step, from the batch it is measured on and the batch it is made of."""

from isentrope.attribution.frontier.batch_noise import mean_square_length
from isentrope.attribution.frontier.frontier import FEWEST_GROUPS, Frontier, frontier_of_gradients
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
    of_batch = min(groups, U.n_prompts)
    square = None
    if of_batch >= FEWEST_GROUPS and "control" not in step.components:
        square = mean_square_length(policy, U, step, of_batch, where)
    return frontier_of_gradients(reward, of_entropy, step, square, options.confidence)
