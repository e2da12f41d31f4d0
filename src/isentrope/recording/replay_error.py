"""The error of the gradient that recorded weights replay."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.models.precision import Precision
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.system.processes import together, world_size
from isentrope.update.objective import RECORDED, entropy_weights, token_weights

REPLAY_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4}
"""Largest relative error of the replayed gradient by the type of the forward pass."""
ROUNDED_TOLERANCE = 3e-2
"""The same for shorter types, by their rounding."""


def precision_of(args: Any) -> Precision:
    """That of a loss: the model's own types, under autocast where the arguments ask for it."""
    shorter = {"bf16": "bfloat16", "fp16": "float16"}
    asked = (kind for name, kind in shorter.items() if getattr(args, name, False))
    return Precision("as_is", autocast=next(asked, None))


def replay_tolerance(policy: Policy) -> float:
    """Largest relative error up to which a record replays its step, by the type of the pass."""
    kind = next(iter(policy.model.parameters())).dtype
    return (
        ROUNDED_TOLERANCE
        if policy.precision.autocast
        else REPLAY_TOLERANCE.get(kind, ROUNDED_TOLERANCE)
    )


def _negative_weights(mine: Rollouts) -> tuple[Tensor, Tensor | None]:
    d = entropy_weights(mine, RECORDED)
    return -token_weights(mine, RECORDED), None if d is None else -d


def replay_error(
    policy: Policy, mine: Rollouts | None, max_norm: float | None
) -> tuple[float, float]:
    """‖replayed − used‖/‖used‖ of the clipped gradient; every process must call this.

    Args:
        policy: The policy in training, .grad as the optimizer will use it.
        mine: This process's sequences with their weights, or None for none.
        max_norm: Norm to which the gradient is clipped, or None.

    Returns:
        The error, and the norm of the replayed gradient before clipping.
    """
    replayed: Vector = together(
        lambda: (
            {n: torch.zeros_like(p, dtype=torch.float64) for n, p in policy.theta.items()}
            if mine is None
            else weighted_gradient(policy, mine, *_negative_weights(mine))
        )
    )
    if world_size() > 1:
        for part in replayed.values():
            dist.all_reduce(part)
    size = norm(replayed)
    clip = 1.0 if max_norm is None else min(1.0, max_norm / (size + 1e-6))
    used, gap = 0.0, 0.0
    for name, part in replayed.items():
        grad = policy.model.get_parameter(name).grad
        gradient = torch.zeros_like(part) if grad is None else grad.double()
        used += float((gradient**2).sum())
        gap += float(((clip * part - gradient) ** 2).sum())
    if used == 0.0:
        return (0.0 if gap == 0.0 else float("inf")), size
    return (gap / used) ** 0.5, size
