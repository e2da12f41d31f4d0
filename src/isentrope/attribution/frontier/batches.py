"""The frontier of a step, from the batch it is measured on."""

from isentrope.attribution.frontier.edge import Edge, require_groups
from isentrope.attribution.frontier.frontier import Frontier, frontier_of_step
from isentrope.attribution.frontier.gradient_products import GradientPair
from isentrope.attribution.gradients.storage_plan import StoragePlace
from isentrope.estimators.options import EstimatorOptions
from isentrope.estimators.sample import score_batch
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.argument_types import refuse_other_types
from isentrope.update.step import Step


@refuse_other_types
def frontier(
    policy: Policy,
    E: Rollouts,
    step: Step,
    options: EstimatorOptions = EstimatorOptions(),
    *,
    groups: int = 16,
    where: StoragePlace = "device",
) -> Frontier:
    """Say what any step of the same length could do to reward and entropy (T14).

    It takes a forward pass over E with two backward passes.

    Args:
        policy: The policy at θ.
        E: An unfiltered batch with rewards, of other prompts than the step's.
        step: The step of the optimizer on its own batch.
        options: Which entropy, by `per`, and the confidence.
        groups: Groups of E's prompts that errors are over, 8 or more.
        where: Where the gradients of the groups are held: "device", "cpu" or "disk".

    Returns:
        The frontier, changes per unit η.

    Raises:
        ValueError: If E has no rewards, or there are fewer than eight groups, or not a prompt for
            each.
    """
    require_groups(groups, E.n_prompts)  # before the passes
    sample = score_batch(policy, E, options)
    gradients = GradientPair.on_batch(policy, E, sample, step.preconditioner, groups, where)
    edge = Edge.of_step(gradients, step)
    return frontier_of_step(edge, step, options.confidence)
