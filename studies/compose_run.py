"""One run of the study on `compose`: Dr. GRPO from a base, with an arm and a seed.

Prompts and uniforms come from the seed alone, so runs of one base and seed are pairs: two arms that
do the same until a step have the same responses until then.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from studies.compose_arm import Arm, Batch
from studies.compose_base import Base
from studies.compose_policy import CHAIN, RESPONSE, STRATEGY, Policy, sample, score, token_mask
from studies.compose_task import Reading, join, read, table, verify


@dataclass(frozen=True)
class Settings:
    """How all arms are trained.

    Attributes:
        steps: Optimizer steps of vanilla.
        prompts: Per step.
        composed: Of these, with two maps.
        responses: Per prompt.
        rate: Learning rate of vanilla, constant.
        every: Steps between readings.
        held_out: Prompts of each kind in a reading.
    """

    steps: int = 200
    prompts: int = 16
    composed: int = 5
    responses: int = 8
    rate: float = 3e-4
    every: int = 10
    held_out: int = 128


def train(arm: Arm, base: Base, seed: int, settings: Settings) -> dict[str, Any]:
    """Train, and read the policy on the way.

    Args:
        arm: A new one, without a state.
        base: Where training starts; it is not changed.
        seed: Of prompts and responses.
        settings: Of all arms.

    Returns:
        `readings`, one dictionary per `every` steps with its `step`; `steps`, lists with one number
        per step (`log`); and `seconds` of processor time.
    """
    began = time.process_time()
    policy = copy.deepcopy(base.policy)
    optimizer = torch.optim.AdamW(
        policy.parameters(),
        lr=arm.rate * settings.rate,
        betas=(arm.momentum, 0.999),
        weight_decay=0.0,
        fused=True,
    )
    arm.start(policy, seed)
    prompts, tokens = (torch.Generator().manual_seed(3 * seed + i) for i in range(2))
    readings, steps = [], []
    last = arm.steps * settings.steps
    for step in range(last):
        if step % settings.every == 0:
            readings.append({"step": step} | _plain(read(policy, settings.held_out)))
        batch = rollouts(policy, step, settings, prompts, tokens)
        optimize(arm, batch, optimizer)
        steps.append(log(batch) | arm.numbers)
    readings.append({"step": last} | _plain(read(policy, settings.held_out)))
    names = dict.fromkeys(name for line in steps for name in line)
    return {
        "readings": readings,
        "steps": {name: [_rounded(line.get(name, math.nan)) for line in steps] for name in names},
        "seconds": time.process_time() - began,
    }


def _plain(reading: Reading) -> dict[str, float | None]:
    return {name: _rounded(value, 6) for name, value in asdict(reading).items()}


def _rounded(value: float, digits: int = 4) -> float | None:
    """A number of few digits; None for NaN, which JSON does not have."""
    return None if math.isnan(value) else float(f"{value:.{digits}g}")


def rollouts(
    policy: Policy,
    step: int,
    settings: Settings,
    prompt_numbers: torch.Generator,
    token_numbers: torch.Generator,
) -> Batch:
    """Draw the prompts and responses of a step, and score them with a graph.

    Args:
        policy: The policy.
        step: Number of the step, from 0.
        settings: Of all arms.
        prompt_numbers: Random numbers of prompts.
        token_numbers: Random numbers of responses, equally many in every step.

    Returns:
        The batch.
    """
    prompts = join(
        table(True, False).draw(settings.composed, prompt_numbers),
        table(False, False).draw(settings.prompts - settings.composed, prompt_numbers),
    )
    owner = torch.arange(settings.prompts).repeat_interleave(settings.responses)
    uniforms = torch.rand(RESPONSE, len(owner), generator=token_numbers)
    responses, lengths = sample(policy, prompts.tokens, owner, uniforms)
    rewards = verify(prompts[owner], responses)
    groups = rewards.view(-1, settings.responses)
    logprobs = score(policy, prompts.tokens, owner, responses, lengths).log_softmax(-1)
    mask = token_mask(lengths)
    return Batch(
        step=step,
        prompts=prompts,
        owner=owner,
        responses=responses,
        lengths=lengths,
        rewards=rewards,
        advantages=(groups - groups.mean(1, keepdim=True)).flatten(),
        logprobs=logprobs.gather(2, responses[..., None])[..., 0] * mask,
        entropies=-(logprobs.exp() * logprobs).sum(-1) * mask,
        chain=_chain_probability(logprobs.detach(), responses),
    )


def _chain_probability(logprobs: Tensor, responses: Tensor) -> Tensor:
    """(n,) P('>') after three digits; NaN where the response begins otherwise."""
    digits = (responses[:, :STRATEGY] < 10).all(1)
    return torch.where(digits, logprobs[:, STRATEGY, CHAIN].exp(), math.nan)


def optimize(arm: Arm, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
    """Take the step of an arm."""
    loss = -(arm.token_weights(batch) * batch.logprobs).sum() + arm.loss_terms(batch)
    optimizer.zero_grad()
    loss.backward(retain_graph=arm.keeps_graph)
    arm.before_step(batch, optimizer)
    optimizer.step()
    arm.after_step(batch, optimizer)


def log(batch: Batch) -> dict[str, float]:
    """Numbers of a step.

    Args:
        batch: Its rollouts.

    Returns:
        `reward` and `reward_composed`, means; `length`, tokens; `entropy_response` and
        `entropy_token`, nats; and `chain_unsolved`, the mean P('>') at the strategy position over
        responses to prompts of two maps whose whole group has no reward, NaN if there is none.
    """
    two = batch.prompts.composed[batch.owner]
    groups = torch.zeros(len(batch.prompts)).index_add_(0, batch.owner, batch.rewards)
    unsolved = two & (groups == 0)[batch.owner] & ~batch.chain.isnan()
    entropy = batch.entropies.detach().sum()
    return {
        "reward": float(batch.rewards.mean()),
        "reward_composed": float(batch.rewards[two].mean()),
        "length": float(batch.lengths.float().mean()),
        "entropy_response": float(entropy / len(batch.lengths)),
        "entropy_token": batch.entropy_per_token,
        "chain_unsolved": float(batch.chain[unsolved].mean()),
    }
