"""The policies that runs on `compose` start from, fine-tuned so that all have the same P('>').

Two stages: chains and single maps without errors, then demonstrations with the errors of the dials,
whose share q of chains is searched for each base.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from studies.compose_policy import RESPONSE, STRATEGY, Policy, token_mask
from studies.compose_task import (
    Prompts,
    Reading,
    apply_map,
    chain,
    direct,
    join,
    lengths_of,
    likelihood,
    read,
    table,
)


@dataclass(frozen=True)
class Dials:
    """How hard the task is.

    Attributes:
        strategy: P('>') after the first result, of a base on held-out prompts of two maps; q of
            each base is set so that it has this value.
        q: Share of chains among demonstrations of two maps, where the search for q begins.
        junk: Share of demonstrations of one map that apply one more map after the answer.
        skill: Share of prompts of two maps that practise the second link alone.
        eta: Share of digits in demonstrations that are random.
        composed: Share of prompts of two maps in fine-tuning.
        skill_steps: Steps of the first stage, chains and maps without errors.
        style_steps: Steps of the second stage, with all dials.
        batch: Demonstrations per step.
    """

    strategy: float = 0.015
    q: float = 0.007
    junk: float = 0.04
    skill: float = 0.5
    eta: float = 0.05
    composed: float = 0.3
    skill_steps: int = 600
    style_steps: int = 200
    batch: int = 128


def demonstrations(
    dials: Dials, q: float, generator: torch.Generator
) -> tuple[Prompts, Tensor, Tensor]:
    """A batch of the second stage.

    Args:
        dials: Of the task.
        q: Share of chains among prompts of two maps.
        generator: Random numbers.

    Returns:
        n prompts, (n, 8) responses, and (n, 8) float weights of their tokens in the loss.
    """
    two = round(dials.batch * dials.composed)
    prompts = join(
        table(True, False).draw(two, generator),
        table(False, False).draw(dials.batch - two, generator),
    )
    n = len(prompts)
    uniform = torch.rand(3, n, generator=generator)
    chained = chain(prompts.first, prompts.answer)
    responses = _where(prompts.composed & (uniform[0] < q), chained, direct(prompts.first))
    extra = torch.randint(4, (n,), generator=generator)
    more = torch.stack([apply_map(m, prompts.answer) for m in range(4)])[extra, torch.arange(n)]
    junk = ~prompts.composed & (uniform[1] < dials.junk)
    responses = _where(junk, chain(prompts.answer, more), responses)
    practice = prompts.composed & (uniform[2] < dials.skill)
    responses = _where(practice, chained, responses)

    random = torch.randint(10, responses.shape, generator=generator)
    noisy = (torch.rand(responses.shape, generator=generator) < dials.eta) & (responses < 10)
    given = practice[:, None] & (torch.arange(RESPONSE) <= STRATEGY)  # the first link is right
    responses = torch.where(noisy & ~given, random, responses)
    return prompts, responses, token_mask(lengths_of(responses)) * ~given


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows[:, None], yes, no)


def errorless(dials: Dials, generator: torch.Generator) -> tuple[Prompts, Tensor, Tensor]:
    """A batch of the first stage: half chains, half one map, as `demonstrations` returns it."""
    half = dials.batch // 2
    two, one = (table(composed, False).draw(half, generator) for composed in (True, False))
    responses = torch.cat([chain(two.first, two.answer), direct(one.answer)])
    return join(two, one), responses, token_mask(lengths_of(responses))


def fine_tune(policy: Policy, dials: Dials, seed: int, q: float | None) -> None:
    """Train on demonstrations, the learning rate falling linearly after a warm-up.

    Args:
        policy: Changed in place.
        dials: Of the task.
        seed: Of the demonstrations.
        q: Share of chains in the second stage; None for the first stage.
    """
    steps, rate = (dials.skill_steps, 3e-3) if q is None else (dials.style_steps, 1e-3)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50) * (1 - 0.97 * step / steps)
        batch = errorless(dials, generator) if q is None else demonstrations(dials, q, generator)
        prompts, responses, weights = batch
        loss = -(likelihood(policy, prompts, responses) * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()


TOLERANCE = 0.05
"""Of log P('>') of a base."""
ATTEMPTS = 6


@dataclass(frozen=True)
class Base:
    """A fine-tuned policy.

    Attributes:
        policy: It.
        q: Share of chains among its demonstrations.
        reading: Its numbers.
    """

    policy: Policy
    q: float
    reading: Reading


def make_skilled(dials: Dials, seed: int) -> Policy:
    """A policy after the first stage: it answers everything, and prompts of two maps by chains."""
    policy = Policy(seed)
    fine_tune(policy, dials, 2 * seed, None)
    return policy


def make_base(dials: Dials, seed: int, skilled: Policy) -> Base:
    """Fine-tune in the second stage, and set q so that the base has the P('>') of the dials.

    Args:
        dials: Of the task.
        seed: Of the demonstrations.
        skilled: The policy after the first stage; it is not changed.

    Returns:
        The base; q is found by a secant in the logarithms, from the same demonstrations.

    Raises:
        ValueError: If no q comes within `TOLERANCE`.
    """
    points: list[tuple[float, float]] = []
    q = dials.q
    for _ in range(ATTEMPTS):
        policy = copy.deepcopy(skilled)
        fine_tune(policy, dials, 2 * seed + 1, q)
        reading = read(policy)
        points.append((math.log(q), math.log(reading.strategy / dials.strategy)))
        if abs(points[-1][1]) <= TOLERANCE:
            return Base(policy, q, reading)
        q = math.exp(_next(points))
    found = ", ".join(
        f"{math.exp(x):.4f} gives {dials.strategy * math.exp(y):.4f}" for x, y in points
    )
    raise ValueError(f"No q gives base {seed} P('>') = {dials.strategy}: {found}.")


def _next(points: list[tuple[float, float]]) -> float:
    """log q of the next attempt; the slope is 1 at first, and stays within [.5, 2]."""
    x, y = points[-1]
    slope = 1.0
    if len(points) > 1:
        before_x, before_y = points[-2]
        slope = min(max((y - before_y) / (x - before_x), 0.5), 2.0)
    return x - y / slope
