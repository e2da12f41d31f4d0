"""Dr. GRPO in its simplest form: on-policy, torch's AdamW, one update per batch (2503.20783).

    loss = −1/(n L) Σ_i A_i S(t_i),     n = prompts x group,  L = max_new_tokens

A batch depends on θ, seed and step only, so `step_N` holds everything that step N + 1 needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from examples.checkpoints import require_new_run, save_checkpoint
from isentrope.checkpoint.files import step_name
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.sampling.batches import Groups, update_batch
from isentrope.sampling.tasks.task import Task
from isentrope.training.update_batches import describe_batch
from isentrope.update.objective import token_weights


def reference_loop(
    policy: Policy,
    task: Task,
    folder: str | Path,
    *,
    steps: int,
    max_new_tokens: int,
    learning_rate: float = 1e-3,
    prompts_per_step: int = 16,
    group_size: int = 8,
    max_grad_norm: float = 1.0,
    save_every: int = 10,
    seed: int = 0,
    progress: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> list[dict[str, float]]:
    """Train a policy's adapter in place, and save checkpoints.

    Args:
        policy: A policy with adapter, whose base is on disk.
        task: Prompts and rewards.
        folder: Run folder, for `training_state/step_N/`.
        steps: Number of updates.
        max_new_tokens: Longest response in tokens, and L.
        learning_rate: Constant learning rate.
        prompts_per_step: Prompt groups per batch, each with nonzero advantages.
        group_size: Responses per prompt.
        max_grad_norm: Norm to which the gradient is clipped.
        save_every: Number of steps between checkpoints; the last step is always saved.
        seed: Fixes every batch.
        progress: Called with the metrics of each step.

    Returns:
        The metrics of each step, as in trainer_state.json.
    """
    settings = {k: v for k, v in locals().items() if isinstance(v, (int, float))}
    state = settings | {"temperature": policy.temperature, "objective": "dr_grpo"}
    checkpoints, history = require_new_run(policy, Path(folder)), []
    parameters = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.items(), lr=learning_rate)
    for step in range(1, steps + 1):
        batch, report = update_batch(
            *(policy, task.prompts, task, Groups(prompts_per_step, group_size, max_new_tokens)),
            seed=1_000_003 * seed + step,
            batch_size=prompts_per_step * group_size,
        )
        weights = token_weights(batch, "dr_grpo", max_new_tokens)  # (n, t)
        ascent = weighted_gradient(policy, batch, weights)
        for name, parameter in parameters.items():
            parameter.grad = (-ascent[name]).to(parameter.dtype)
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), max_grad_norm)
        optimizer.step()
        history.append({"step": step, "gradient_norm": float(norm)} | describe_batch(batch, report))
        progress(history[-1])
        if step % save_every == 0 or step == steps:
            now = state | {"step": step, "global_step": step, "log_history": history}
            save_checkpoint(policy, optimizer, checkpoints / step_name(step), now)
    return history
