"""Whether torch differentiates a policy rightly: compared once per way of taking derivatives."""

from __future__ import annotations

import torch

from isentrope.models import derivative_guard
from isentrope.models.batching import micro_batches
from isentrope.nouns.differences import Mode
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.head import Scorer
from isentrope.policy.language_model import Policy

TOKENS = 4
"""Prompt tokens and response tokens that are kept of a sequence."""


def require_derivatives(policy: Policy, rollouts: Rollouts, mode: Mode = "forward") -> None:
    """Refuse a policy whose derivatives are wrong. Later calls with the policy cost nothing.

    Args:
        policy: The policy.
        rollouts: The first two sequences are used, cut short.
        mode: How derivatives are about to be computed.

    Raises:
        DerivativeError: If they are wrong, naming the class of the module at fault.
    """
    dtype_of_theta = next(iter(policy.theta.values())).dtype
    known = {way for way, dtype in policy.compared_derivatives if dtype == dtype_of_theta}
    # forward over forward compares the first derivative on its way
    if mode in known or (mode == "forward" and "forward over forward" in known):
        return
    policy.require_no_dropout()
    n = min(2, len(rollouts))
    short = Rollouts(
        [p[-TOKENS:] for p in rollouts.prompt_ids[:n]],
        [r[:TOKENS] for r in rollouts.response_ids[:n]],
        torch.arange(n),
    )
    (batch,) = micro_batches(short, 4 * TOKENS**2, padding=4 * TOKENS**2)
    settings = policy.temperature, policy.vocab_chunk, policy.precision.entropy
    arguments = (Scorer.scores, batch.to(policy.device), *settings)
    derivative_guard.compare_derivatives(policy.model, policy.scorer, arguments, mode)
    policy.compared_derivatives.add((mode, dtype_of_theta))
