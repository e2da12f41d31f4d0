"""Passes over a batch that are tried again in smaller micro-batches where memory is short.

The smaller size stays with the policy. Micro-batches change sums by rounding and nothing else. In
several processes there is no second try: the others would wait for a pass that begins again.
"""

import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import nn

from isentrope.models.batching import tokens_read
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.memory import give_back, is_lack_of_memory

_log = logging.getLogger("isentrope")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def smaller_where_memory_is_short(
    compute: Callable[Concatenate[Policy, Rollouts, _P], _R],
) -> Callable[Concatenate[Policy, Rollouts, _P], _R]:
    """Try a pass again with half of the tokens per micro-batch, down to one sequence.

    Args:
        compute: A function of a policy and rollouts that changes nothing outside itself.

    Returns:
        The same function, which lowers `policy.max_tokens` where it has to.
    """

    @wraps(compute)
    def attempt(policy: Policy, rollouts: Rollouts, *args: _P.args, **options: _P.kwargs) -> _R:
        return tried_again(policy, rollouts, partial(compute, policy, rollouts, *args, **options))

    return attempt


def tried_again(policy: Policy, rollouts: Rollouts, attempt: Callable[[], _R]) -> _R:
    """Compute something, and from its beginning with half of the tokens where memory is short.

    Args:
        policy: Whose `max_tokens` is lowered.
        rollouts: What is read in micro-batches.
        attempt: It must leave nothing behind where it fails.

    Returns:
        What it returned.

    Raises:
        MemoryError: Where no smaller micro-batch is possible; of a device it is torch's own error.
        RuntimeError: What else it raises.
    """
    lengths = tokens_read(rollouts)
    longest = max(lengths)
    while True:
        tokens = min(policy.max_tokens, longest * len(lengths))
        smaller = max(longest, tokens // 2)
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            may_halve = policy.ranks.size == 1 and tokens >= 2 * longest
            if not may_halve or not is_lack_of_memory(error):
                raise
            _log.warning(
                "Memory is short: %d tokens per micro-batch from here on instead of %d "
                "(sampling.max_tokens).",
                *(smaller, policy.max_tokens),
            )
        policy.max_tokens = smaller  # outside of the handler, which keeps the tensors alive
        give_back()


def tokens_in(memory: int, model: Any, head: Any) -> int:
    """How many tokens a micro-batch may have, about, where a pass may keep so many bytes.

    Args:
        memory: Bytes.
        model: The model; inputs and outputs of its decoder's linear layers are kept.
        head: Its output embedding, which keeps none.

    Returns:
        At least one, a power of two.
    """
    layers = [m for n, m in model.named_modules() if "lora_" not in n and m != head]
    numbers = sum(m.in_features + m.out_features for m in layers if isinstance(m, nn.Linear))
    fitting = max(1, memory // max(1, 4 * numbers))
    return 2 ** (fitting.bit_length() - 1)
