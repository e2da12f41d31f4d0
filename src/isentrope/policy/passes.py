"""A map over the micro-batches of rollouts, which all processes that share the work make together.

Where layers are spread, every process runs equally many passes. So one that has no micro-batch left
repeats one of the others, and what it computes from it is dropped here.
"""

from collections.abc import Callable
from typing import Any, ParamSpec

from torch import Tensor

from isentrope.models.batching import MicroBatch, micro_batches
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy

_P = ParamSpec("_P")


def map_micro_batches(
    policy: Policy,
    rollouts: Rollouts,
    run: Callable[[MicroBatch, Callable[_P, object]], object],
    receive: Callable[_P, object],
    *,
    unit_of: Tensor | None = None,
    max_tokens: int | None = None,
) -> None:
    """Run a pass on each micro-batch of this process, and receive what it gives.

    What several processes have received is added up by the caller (`Policy.sum_over_processes`,
    `Policy.gather_lists`): no sequence is received twice.

    Args:
        policy: The policy, whose processes share the rollouts.
        rollouts: n sequences.
        run: A pass. It is called with a micro-batch on the policy's device, and with a function
            that takes what the pass computes of it.
        receive: What that function does with results that count.
        unit_of: (n,) sequences of one unit go to one process; None: each is its own.
        max_tokens: Padded tokens of a micro-batch; None for those of the policy.
    """
    batches = micro_batches(
        rollouts,
        policy.max_tokens if max_tokens is None else max_tokens,
        policy.ranks,
        unit_of,
        policy.padding,
    )
    for batch in batches:
        if batch.counted:
            run(batch.to(policy.device), receive)
        else:
            run(batch.to(policy.device), _drop)


def _drop(*_: Any, **__: Any) -> None:
    """Do nothing with what another process has computed too."""
