"""The micro-batches of a pass over rollouts that gives scores, prompts shared where that is faster.

Work is counted in tokens: those that the model reads, and `padding` for each call of it. Responses
to one prompt make a micro-batch of their own, in which the prompt is read once, if that is less
work than the same responses are in plain micro-batches.

Passes over a batch that are tried again in smaller micro-batches where memory is short.

The smaller size stays with the policy. Micro-batches change sums by rounding and nothing else. In
several processes there is no second try: the others would wait for a pass that begins again.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

from isentrope.models.attention import keeps_plain_cache
from isentrope.models.batching import (
    MicroBatch,
    Part,
    cut_by_length,
    micro_batches,
    owners,
    padded,
    tokens_read,
)
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.memory import give_back, is_lack_of_memory

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
        return tried_again(policy, rollouts, partial(compute, policy, rollouts, *args, **options))

    return tried


def tried_again(policy: Policy, rollouts: Rollouts, attempt: Callable[[], R]) -> R:
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
        now = min(policy.max_tokens, longest * len(lengths))
        smaller = max(longest, now // 2)
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            alone = policy.ranks.size == 1 and now >= 2 * longest
            if not alone or not is_lack_of_memory(error):
                raise
            log.warning(
                "Memory is short: %d tokens per micro-batch from here on instead of %d "
                "(sampling.max_tokens).",
                *(smaller, policy.max_tokens),
            )
        policy.max_tokens = smaller  # outside of the handler, which keeps the tensors alive
        give_back()


def tokens_in(memory: int, policy: Policy) -> int:
    """How many tokens a micro-batch may have, about, where a pass may keep so many bytes.

    Args:
        memory: Bytes.
        policy: The policy; inputs and outputs of its decoder's linear layers are kept.

    Returns:
        At least one.
    """
    layers = [m for n, m in policy.model.named_modules() if "lora_" not in n and m != policy.head]
    kept = sum(m.in_features + m.out_features for m in layers if isinstance(m, nn.Linear))
    return max(1, memory // max(1, 4 * kept))


GROUPS_OF_A_PROCESS = 4
"""Prompts per process from which all responses to a prompt go to one process."""


def scoring_batches(
    policy: Policy, rollouts: Rollouts, max_tokens: int, padding: int
) -> list[MicroBatch]:
    """Cut this process's part of rollouts into micro-batches of at most `max_tokens` tokens.

    Args:
        policy: The policy that reads them, whose `ranks` share them.
        rollouts: n sequences.
        max_tokens: Budget of padded tokens, those of a shared prompt counted for every sequence.
        padding: Padded tokens that cost as much as one more call of the model.

    Returns:
        Micro-batches, at least one, which may not be counted.
    """
    ranks = policy.ranks
    number: dict[bytes, int] = {}  # equal prompts have one, whichever draws they are of
    prompt_of = [number.setdefault(p.numpy().tobytes(), len(number)) for p in rollouts.prompt_ids]
    prompts = max(prompt_of) + 1
    if prompts == len(rollouts) or policy.sharded or not keeps_plain_cache(policy.model):
        return micro_batches(rollouts, max_tokens, ranks, padding=padding)
    totals = tokens_read(rollouts)
    together = prompts >= GROUPS_OF_A_PROCESS * ranks.size
    owner = owners(totals, ranks, torch.tensor(prompt_of) if together else None)
    own = [i for i in range(len(totals)) if int(owner[i]) == ranks.own]
    own.sort(key=lambda i: -totals[i])
    plain = cut_by_length(own, totals, max_tokens, padding)
    work = sum(len(part) * totals[part[0]] + padding for part in plain)
    price = work / max(1, sum(totals[i] for i in own))
    groups: dict[int, list[int]] = {}
    for i in own:
        groups.setdefault(prompt_of[i], []).append(i)
    shared: list[MicroBatch] = []
    left: list[int] = []
    for rows in groups.values():
        alone = len(rows) == 1 or len(rollouts.prompt_ids[rows[0]]) == 1
        batches: list[MicroBatch] = []  # of these responses, longest first
        for chosen in [] if alone else cut_by_length(rows, totals, max_tokens, max_tokens):
            parts: list[Part] = []
            for part in cut_by_length(chosen, totals, max_tokens, padding):
                start = parts[-1].stop if parts else 0
                parts.append(Part(start, start + len(part), totals[part[0]]))
            prompt = len(rollouts.prompt_ids[rows[0]]) - 1
            batches.append(replace(padded(rollouts, chosen), prompt=prompt, parts=tuple(parts)))
        work = sum(
            b.prompt
            + sum((part.stop - part.start) * (part.length - b.prompt) for part in b.parts)
            + padding * (1 + len(b.parts))
            for b in batches
        )
        if batches and work < price * sum(totals[i] for i in rows):
            shared += batches
        else:
            left += rows
    left.sort(key=lambda i: -totals[i])
    whole = [padded(rollouts, rows) for rows in cut_by_length(left, totals, max_tokens, padding)]
    return [*whole, *shared] or [replace(padded(rollouts, [0]), counted=False)]
