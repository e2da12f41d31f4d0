"""A control's own E: drawn from the live policy, the same for any number of processes.

E is `2K` groups of sequences, K for each half. Group j is differentiated on process j mod W, so the
sums over groups, and λ, do not depend on the number of processes. The stream of random numbers
differs from the probe's: measured on the sample that it was computed from, a correction always
appears to meet its target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from isentrope.control.gradients import GROUPS, entropy_of, gradient_groups
from isentrope.control.measured import HeldOutSample
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


def draw_entropy(policy: Policy, source: HeldOutSample, step: int) -> EntropyDraw:
    """Draw E and differentiate h on it; every process must call this.

    Args:
        policy: The live policy, in evaluation mode.
        source: What E is drawn from, both halves together.
        step: The step about to be taken.

    Returns:
        Gradients and entropy.
    """
    E = source.draw(policy, step)
    first = sum(map(len, torch.arange(len(E)).tensor_split(2 * GROUPS)[:GROUPS]))
    mine = range(rank(), GROUPS, world_size())
    halves = []
    for rows in (range(first), range(first, len(E))):
        half = E.select(rows)
        gradients = together(lambda E=half: gradient_groups(policy, E, mine=mine))
        if world_size() > 1:
            for part in gradients.values():  # each group is on one process, and 0 on the others
                dist.all_reduce(part)
        halves.append(gradients)
    return EntropyDraw(halves[0], halves[1], *entropy_of(E), int(E.lengths.sum()))
