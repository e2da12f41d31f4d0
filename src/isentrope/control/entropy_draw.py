"""A control's own E: drawn from the live policy, the same for any number of processes.

E is `2K` groups of sequences, K for each half. Group j is differentiated on process j mod W, so the
sums over groups, and λ, do not depend on the number of processes. The stream of random numbers
differs from the probe's: measured on the sample that it was computed from, a correction always
appears to meet its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from isentrope.control.gradients import (
    GROUPS,
    entropy_cotangents,
    entropy_of,
    weighted_rows,
)
from isentrope.control.measured import HeldOut
from isentrope.models.padding import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.system.processes import rank, together, world_size

STREAM = 13
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


def draw_entropy(policy: Policy, source: HeldOut, step: int) -> EntropyDraw:
    """Draw E and differentiate h on it; every process must call this.

    Args:
        policy: The live policy, in evaluation mode.
        source: What E is drawn from, both halves together.
        step: The step about to be taken.

    Returns:
        Gradients and entropy.
    """
    E = source.draw(policy, step)
    parts = torch.arange(len(E)).tensor_split(2 * GROUPS)
    halves = [E.select(torch.cat(parts[k * GROUPS :][:GROUPS])) for k in range(2)]
    gradients = together(lambda: _gradients(policy, halves))
    if world_size() > 1:
        for part in gradients.values():  # each group is on one process, and 0 on the others
            dist.all_reduce(part)
    a, b = ({n: x[k * GROUPS :][:GROUPS] for n, x in gradients.items()} for k in range(2))
    return EntropyDraw(a, b, *entropy_of(E), int(E.lengths.sum()))


def _gradients(policy: Policy, halves: Sequence[Rollouts]) -> Vector:
    """(2K, ...) by name: the gradients of this process's groups, 0 elsewhere."""
    gradients = {
        n: torch.zeros(2 * GROUPS, *x.shape, dtype=torch.float64, device=x.device)
        for n, x in policy.theta.items()
    }
    weights = [entropy_cotangents(half) for half in halves]
    with derivative_of_scores(policy.model):
        for j in range(rank(), 2 * GROUPS, world_size()):
            half, k = divmod(j, GROUPS)
            rows = torch.arange(len(halves[half])).tensor_split(GROUPS)[k]
            for n, x in weighted_rows(policy, halves[half], rows, weights[half]).items():
                gradients[n][j] = x
    return gradients
