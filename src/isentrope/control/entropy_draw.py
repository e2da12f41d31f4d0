"""A control's own E: drawn from the live policy, the same for any number of processes.

E is `2K` groups of sequences, K for each half. Group j is scored on process j mod W, so the sums
over groups, and λ, do not depend on the number of processes. The stream of random numbers differs
from the probe's: measured on the sample that it was computed from, a correction always appears to
meet its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.control.gradients import (
    GROUPS,
    entropy_cotangents,
    entropy_of,
    weighted_rows,
)
from isentrope.models.padding import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.sampling.generate import sample_responses
from isentrope.sampling.prompts import Prompt, require_room
from isentrope.sampling.streams import draw_plan, generator_of
from isentrope.system.processes import gather, rank, together, world_size

_STREAM = 13
"""Number of the control's random stream, different from the probe's."""


@dataclass(frozen=True)
class EntropyDraw:
    """E of one step, and its entropy gradients; the same on every process.

    Attributes:
        a: (K, ...) groups of g_a by parameter name, float64.
        b: The same of g_b.
        entropy: h, nats per token.
        entropy_se: Its standard error.
        tokens: Tokens of its responses.
    """

    a: Vector
    b: Vector
    entropy: float
    entropy_se: float
    tokens: int


def draw_entropy(
    policy: Policy,
    prompts: Sequence[Prompt],
    size: int,
    max_new_tokens: int,
    *,
    seed: int,
    step: int,
    batch_size: int = 256,
) -> EntropyDraw:
    """Draw E and differentiate h on it; every process must call this.

    Args:
        policy: The live policy, in evaluation mode.
        prompts: Prompts to draw from, with replacement, one response each.
        size: Number of sequences, both halves together.
        max_new_tokens: Longest response in tokens.
        seed: Fixes prompts and tokens, together with the step.
        step: The step about to be taken.
        batch_size: Sequences sampled at a time.

    Returns:
        Gradients and entropy.
    """
    mine = list(range(rank(), 2 * GROUPS, world_size()))
    groups = _draw_groups(policy, prompts, size, max_new_tokens, (seed, step), batch_size)
    halves = [concatenate(groups[k * GROUPS :][:GROUPS]) for k in range(2)]
    gradients = together(lambda: _gradients(policy, halves, mine))
    if world_size() > 1:
        for part in gradients.values():  # each group is on one process, and 0 on the others
            dist.all_reduce(part)
    a, b = ({n: x[k * GROUPS :][:GROUPS] for n, x in gradients.items()} for k in range(2))
    return EntropyDraw(a, b, *entropy_of(*halves), _tokens(groups))


def draw_level(
    policy: Policy,
    prompts: Sequence[Prompt],
    size: int,
    max_new_tokens: int,
    *,
    seed: int,
    step: int,
    batch_size: int = 256,
) -> tuple[float, float, int]:
    """Draw E for its entropy alone; every process must call this.

    Args:
        policy: The live policy, in evaluation mode.
        prompts: Prompts to draw from, with replacement, one response each.
        size: Number of sequences.
        max_new_tokens: Longest response in tokens.
        seed: Fixes prompts and tokens, together with the step.
        step: A number that differs from those of all other draws with this seed.
        batch_size: Sequences sampled at a time.

    Returns:
        h and its standard error, nats per token, and the tokens of the responses.
    """
    groups = _draw_groups(policy, prompts, size, max_new_tokens, (seed, step), batch_size)
    return (*entropy_of(*groups), _tokens(groups))


def _tokens(groups: Sequence[Rollouts]) -> int:
    return sum(int(group.lengths.sum()) for group in groups)


def _draw_groups(
    policy: Policy,
    prompts: Sequence[Prompt],
    size: int,
    max_new_tokens: int,
    seed_and_step: tuple[int, int],
    batch_size: int,
) -> list[Rollouts]:
    """2K groups of sequences, each drawn by one process, the same list on all."""
    parts = torch.arange(size).tensor_split(2 * GROUPS)
    mine = list(range(rank(), 2 * GROUPS, world_size()))
    generator = generator_of(*seed_and_step, 0, _STREAM)
    draws, uniforms = draw_plan(generator, len(prompts), size, max_new_tokens)
    rows = [parts[j] for j in mine]
    own = together(lambda: _sample(policy, prompts, rows, draws, uniforms, batch_size))
    groups = {j: E for share in gather(dict(zip(mine, own, strict=True))) for j, E in share.items()}
    return [groups[j] for j in range(2 * GROUPS)]


def _sample(
    policy: Policy,
    prompts: Sequence[Prompt],
    groups: list[Tensor],
    draws: Tensor,
    uniforms: Tensor,
    batch_size: int,
) -> list[Rollouts]:
    """Responses of these groups of sequences, one batch of rollouts per group."""
    if not groups:
        return []
    rows = torch.cat(groups)
    selection = [prompts[i] for i in draws[rows].tolist()]
    require_room(policy, selection, uniforms.shape[1])
    ids = [torch.tensor(p.token_ids) for p in selection]
    draw = sample_responses(policy, ids, uniforms[rows], uniforms.shape[1], batch_size)
    columns = draw.responses, draw.logprobs, draw.entropies
    E = Rollouts(ids, columns[0], rows, sampler_logprobs=columns[1], sampler_entropies=columns[2])
    ends = torch.tensor([len(x) for x in groups]).cumsum(0).tolist()
    return [E.select(range(end - len(x), end)) for end, x in zip(ends, groups, strict=True)]


def _gradients(policy: Policy, halves: Sequence[Rollouts], mine: Sequence[int]) -> Vector:
    """(2K, ...) by name: the gradients of this process's groups, 0 elsewhere."""
    gradients = {
        n: torch.zeros(2 * GROUPS, *x.shape, dtype=torch.float64, device=x.device)
        for n, x in policy.theta.items()
    }
    weights = [entropy_cotangents(half) for half in halves]
    with derivative_of_scores(policy.model):
        for j in mine:
            half, k = divmod(j, GROUPS)
            rows = torch.arange(len(halves[half])).tensor_split(GROUPS)[k]
            for n, x in weighted_rows(policy, halves[half], rows, weights[half]).items():
                gradients[n][j] = x
    return gradients
