"""Passes over a batch that are tried again in smaller micro-batches where memory is short.

The smaller size stays with the policy. Micro-batches change sums by rounding and nothing else. In
several processes there is no second try: the others would wait for a pass that begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch

from isentrope.models.architecture import is_lack_of_memory
from isentrope.models.batching import tokens_read
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy

log = logging.getLogger("isentrope")

P = ParamSpec("P")
R = TypeVar("R")


def smaller_where_memory_is_short(
    compute: Callable[Concatenate[Policy, Rollouts, P], R],
) -> Callable[Concatenate[Policy, Rollouts, P], R]:
    """Try a pass again with half of the tokens per micro-batch, down to one sequence.

    Args:
        compute: A function of a policy and rollouts that changes nothing outside itself.

    Returns:
        The same function, which lowers `policy.max_tokens` where it has to.
    """

    @wraps(compute)
    def tried(policy: Policy, rollouts: Rollouts, *args: P.args, **options: P.kwargs) -> R:
        while True:
            try:
                return compute(policy, rollouts, *args, **options)
            except (RuntimeError, MemoryError) as error:
                smaller = _half(policy, rollouts)
                if not is_lack_of_memory(error) or smaller is None:
                    raise
                log.warning(
                    "Memory is short: %d tokens per micro-batch from here on instead of %d "
                    "(sampling.max_tokens).",
                    *(smaller, policy.max_tokens),
                )
            policy.max_tokens = smaller  # outside of the handler, which keeps the tensors alive
            if policy.device.type == "cuda":
                torch.cuda.empty_cache()

    return tried


def _half(policy: Policy, rollouts: Rollouts) -> int | None:
    """Half of what a micro-batch has now; None where it has one sequence, or work is shared."""
    lengths = tokens_read(rollouts)
    longest = max(lengths)
    now = min(policy.max_tokens, longest * len(lengths))
    if policy.ranks.size > 1 or now < 2 * longest:
        return None
    return max(longest, now // 2)
