"""Checks that the model is deterministic: two evaluations at the same θ must be bit-identical."""

from __future__ import annotations

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score


def nondeterminism(policy: Policy, rollouts: Rollouts) -> str | None:
    """Score the rollouts twice and compare.

    Args:
        policy: The policy.
        rollouts: Any sequences.

    Returns:
        None if both evaluations are bit-identical, else a sentence that says what differed.
    """
    first, second = score(policy, rollouts), score(policy, rollouts)
    for name in ("logprobs", "entropies"):
        gap = (getattr(first, name) - getattr(second, name)).abs()
        if float(gap.max()) > 0:
            where = int(gap.amax(1).argmax())
            return (
                f"Two evaluations at the same parameters differ in {name} by up to "
                f"{float(gap.max()):.2g} nats (sequence {where})."
            )
    return None
