"""Supervised fine-tuning in plain torch, against which the trainer of the library is held.

    loss = −(1/N) Σ_i Σ_k s_ik,     N = response tokens of the batch, EOS counted

AdamW with a linear warm-up and a cosine decay to zero. The log-probabilities are the policy's own.
"""

import math

import torch

from isentrope.models.batching import micro_batches
from isentrope.training.demonstrations import demonstration_rollouts


def mean_surprisal(policy, rollouts):
    """Mean of −s over all response tokens, nats; differentiable by the model's own parameters."""
    parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    (batch,) = micro_batches(rollouts, max_tokens=2**40, padding=2**40)
    logprobs, _ = policy.packed_scores(batch.to(policy.device), parameters)
    return -logprobs.mean()


def fine_tune(policy, task, *, seed, steps=400, batch_size=64, learning_rate=2e-3, warmup_steps=20):
    """Teach a policy the task's demonstrations, in place; the loss before each step."""
    parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.items(), lr=learning_rate, weight_decay=0.01)

    def rate(step):
        done = (step - warmup_steps) / max(1, steps - warmup_steps)
        return min((step + 1) / warmup_steps, 0.5 * (1 + math.cos(math.pi * max(0.0, done))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    shown = task.demonstrations(steps * batch_size, seed)
    losses = []
    for step in range(steps):
        batch = demonstration_rollouts(policy, shown[step * batch_size : (step + 1) * batch_size])
        loss = mean_surprisal(policy, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses
