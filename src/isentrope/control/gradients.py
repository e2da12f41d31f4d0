"""Entropy gradients of a control's own sample, by groups of its sequences.

    g = Σ_j g_j,     g_j = Σ_{i in group j} Σ_k (a_ik ∂s_ik + b_ik ∂H_ik)

a and b are the cotangents of h on the whole sample, computed from the entropies of its sampler. At
the policy that drew the sample these are the entropies of the policy, so it is not scored again.

A control's own E: drawn from the live policy, the same for any number of processes.

E is `2K` groups of sequences, K for each half. Group j is differentiated on process j mod W, so the
sums over groups, and λ, do not depend on the number of processes. The stream of random numbers
differs from the probe's: measured on the sample that it was computed from, a correction always
appears to meet its target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.control.measured import HeldOutSample
from isentrope.estimators.entropy import cotangents_of_arrays
from isentrope.estimators.functional import Functionals
from isentrope.models.embeddings import derivative_of_scores
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.system.processes import rank, together, world_size

GROUPS = 4
"""Number of groups of sequences per sample, over which errors are computed."""


def gradient_groups(
    policy: Policy, E: Rollouts, groups: int = GROUPS, mine: Iterable[int] | None = None
) -> Vector:
    """g_H of h on E, as a sum over groups of its sequences.

    Args:
        policy: The policy that drew E.
        E: An unfiltered sample, with the entropies of its sampler.
        groups: K.
        mine: The groups that are computed, the others are 0; None for all.

    Returns:
        (K, ...) by parameter name, float64, nats per token per unit of θ.

    Raises:
        ValueError: If E lacks the sampler's entropies, or has fewer sequences than groups.
    """
    if len(E) < groups:
        raise ValueError(f"E has {len(E)} sequences, which cannot make {groups} groups.")
    weights, splits = entropy_cotangents(E), torch.arange(len(E)).tensor_split(groups)
    gradients = {
        n: torch.zeros(groups, *x.shape, dtype=torch.float64, device=x.device)
        for n, x in policy.theta.items()
    }
    with derivative_of_scores(policy.model):
        for k in range(groups) if mine is None else mine:
            part = E.select(splits[k])
            a, b = (x[splits[k], : part.mask.shape[1]] for x in weights)
            for n, x in weighted_gradient(policy, part, a, b).items():
                gradients[n][k] = x
    return gradients


def entropy_cotangents(E: Rollouts) -> tuple[Tensor, Tensor]:
    """∂h/∂s and ∂h/∂H of every token of E, at the policy that drew E.

    Args:
        E: An unfiltered sample, with the entropies of its sampler.

    Returns:
        Two (n, t) arrays.

    Raises:
        ValueError: If the sampler's entropies are missing.
    """
    if E.sampler_entropies is None:
        raise ValueError("The isentropic step needs an E with the entropies of its sampler.")
    entropies = E.padded("sampler_entropies")
    f = Functionals("per_token", "prefix", E.mask.double())
    return cotangents_of_arrays(f, torch.zeros_like(entropies), entropies)


def entropy_of(*samples: Rollouts) -> tuple[float, float]:
    """The entropy h of pooled samples, and its standard error over sequences.

    Args:
        *samples: Unfiltered samples, one response per prompt draw, with the sampler's entropies.

    Returns:
        h and its error, nats per token.
    """
    columns = [x for E in samples for x in E.sampler_entropies or ()]
    entropy = torch.stack([x.double().sum() for x in columns])
    tokens = torch.tensor([float(len(x)) for x in columns], dtype=torch.float64)
    h, n = float(entropy.sum() / tokens.sum()), len(columns)
    influence = (entropy - h * tokens) / tokens.sum()
    return h, float((n / max(n - 1, 1) * (influence**2).sum()).sqrt())


def summed(groups: Vector) -> Vector:
    """The sum over groups, (...) by name."""
    return {n: x.sum(0) for n, x in groups.items()}


def slope_along(groups: Vector, direction: Vector) -> Tensor:
    """(K,) inner products of each group with a vector."""
    return torch.stack([x.flatten(1) @ direction[n].flatten() for n, x in groups.items()]).sum(0)


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
