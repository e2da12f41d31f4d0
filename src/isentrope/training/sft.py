"""Supervised fine-tuning on demonstrations, in plain torch.

    loss = −(1/N) Σ_i Σ_k s_ik,     N = response tokens of the batch, EOS counted

AdamW with a linear warm-up and a cosine decay to zero. The log-probabilities are the policy's own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isentrope.policy.batching import micro_batches
from isentrope.policy.language_model import Policy
from isentrope.progress import Report, silent
from isentrope.rollouts import Rollouts
from isentrope.sampling.prompts import Prompt, as_prompts
from isentrope.sampling.tasks.addition import Addition


def fine_tune(
    policy: Policy,
    task: Addition,
    *,
    seed: int,
    steps: int = 400,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    warmup_steps: int = 20,
    progress: Report = silent,
) -> list[float]:
    """Teach a policy the task's demonstrations, in place.

    Args:
        policy: The policy; its trainable parameters are changed.
        task: Gives the demonstrations.
        seed: Fixes the demonstrations.
        steps: Optimizer steps.
        batch_size: Fresh demonstrations a step.
        learning_rate: Peak learning rate.
        warmup_steps: Steps of linear warm-up.
        progress: Called with (step, steps) after each step.

    Returns:
        The loss before each step, nats per token.
    """
    parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.items(), lr=learning_rate, weight_decay=0.01)

    def rate(step: int) -> float:
        done = (step - warmup_steps) / max(1, steps - warmup_steps)
        return min((step + 1) / warmup_steps, 0.5 * (1 + math.cos(math.pi * max(0.0, done))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    demonstrations = task.demonstrations(steps * batch_size, seed)
    losses = []
    for step in range(steps):
        batch = demonstration_rollouts(
            policy, demonstrations[step * batch_size : (step + 1) * batch_size]
        )
        loss = mean_surprisal(policy, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        progress(step + 1, steps)
    return losses


def demonstration_rollouts(policy: Policy, demonstrations: list[tuple[Prompt, str]]) -> Rollouts:
    """Encode demonstrations as rollouts, EOS appended.

    Args:
        policy: Gives the tokenizer and EOS.
        demonstrations: (prompt, response text) pairs.

    Returns:
        One sequence a demonstration.
    """
    prompts = as_prompts(policy, [p for p, _ in demonstrations])
    texts = [text for _, text in demonstrations]
    encoded = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return Rollouts(
        prompt_ids=[torch.tensor(p.token_ids) for p in prompts],
        response_ids=[torch.tensor([*ids, policy.eos_token_id]) for ids in encoded],
        prompt_index=torch.arange(len(prompts)),
    )


def mean_surprisal(policy: Policy, rollouts: Rollouts) -> Tensor:
    """Mean of -s over all response tokens, differentiable by the model's own parameters.

    Args:
        policy: The policy.
        rollouts: n sequences, run as one batch.

    Returns:
        A scalar, nats per token.
    """
    parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    (batch,) = micro_batches(rollouts, max_tokens=2**40)
    logprobs, _ = policy.packed_scores(batch.to(policy.device), parameters)
    return -logprobs.mean()
