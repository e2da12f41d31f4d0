"""The parts of a step, one backward pass each."""

from isentrope.nouns.vectors import multiply
from isentrope.policy.gradient import weighted_gradient


def sequence_directions(policy, rollouts, step):
    """P Σ_k (c_ik ∂s_ik + d_ik ∂H_ik) of each sequence i; with `step.baseline` they sum to v."""
    for i in range(len(rollouts)):
        d = None if step.entropy_weights is None else step.entropy_weights[i : i + 1]
        gradient = weighted_gradient(policy, rollouts.select([i]), step.token_weights[i : i + 1], d)
        yield multiply(step.preconditioner, gradient)
