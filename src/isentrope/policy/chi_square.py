"""How far a step moves the distribution of every token, over the whole vocabulary (T2).

    χ²_k = Σ_a π_s(a) (e^{d_a} − 1)² = Σ_a π'(a)²/π_s(a) − 1,     d_a = log π'(a) − log π_s(a)
    κ_k  = Σ_a π_s(a) (e^{d_a} − 1)⁴
    ρ_km = Σ_a π_s(a) R(d_a)^m,     R(d) = e^d − 1 − d − d²/2,     m = 2, 4

π' is the policy at θ + ηv, π_s the distribution that the tokens were drawn from. χ²_k is the
variance of the next factor of an importance weight with the token integrated out: it counts the
tokens that no response of the batch contains. ρ is the same for what a factor is beyond its second
order. Both policies are evaluated on one micro-batch: hidden states at θ once, those at every
θ + ηv beside them. Logits are held for a few tokens at a time, never for all.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isentrope.policy.batching import MicroBatch, micro_batches
from isentrope.policy.scorer import Scorer
from isentrope.policy.token_statistics import NotFiniteError, Scores, logit_chunks, require_finite
from isentrope.rollouts import Rollouts
from isentrope.vectors import Vector

if TYPE_CHECKING:
    from isentrope.policy.language_model import Policy

LOGITS_HELD = 2**22
"""Largest number of logits of each policy held at once; one token at least."""

SERIES_BELOW = 0.03
"""|d| below which R(d) is taken from its series: e^d − 1 − d − d²/2 would cancel."""


@dataclass(frozen=True)
class Divergence:
    """How far the distribution at each token of n responses moves, on the CPU.

    Attributes:
        jumps: (n, t, 2) float64, χ²_ik and κ_ik, or (n, t, 1) χ²_ik alone; 0 where no token is.
        remainder: (n, t, 2) float64, ρ_ik2 and ρ_ik4; None where they were not asked for.
    """

    jumps: Tensor
    remainder: Tensor | None = None


@dataclass(frozen=True)
class Reference:
    """The distribution that the tokens of a micro-batch were drawn from.

    Attributes:
        hidden: (m, d) hidden states at θ.
        head: Output embedding at θ.
        temperature: Temperature of the sampler.
    """

    hidden: Tensor
    head: nn.Module
    temperature: float


def score_moved(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    etas: Sequence[float],
    *,
    sampler_temperature: float | None = None,
    remainder: bool = False,
) -> list[tuple[Scores, Divergence] | None]:
    """Score every response at θ + ηv for several η, and how far each distribution has moved.

    Args:
        policy: The policy at θ.
        rollouts: n sequences that the policy at θ drew.
        direction: v.
        etas: Learning rates.
        sampler_temperature: Temperature they were drawn at; the policy's own by default.
        remainder: Whether ρ is wanted too.

    Returns:
        Scores and divergences, one pair per learning rate; None where a score is not finite.
    """
    rollouts.require_vocabulary(policy.vocabulary)
    mask = rollouts.mask
    shape = (len(etas), *mask.shape, 6 if remainder else 4)
    out = torch.zeros(shape, dtype=torch.float64)
    head = _separate(policy.head) if _is_trained(policy) else policy.head
    temperature = sampler_temperature or policy.temperature
    with torch.no_grad():
        for batch in micro_batches(rollouts, policy.max_tokens):
            here = batch.to(policy.device)
            reference = Reference(policy.packed_hidden(here, policy.theta), head, temperature)
            for j, eta in enumerate(etas):
                moved = policy.parameters_along(direction, eta)
                batch.place(policy.packed_divergence(here, moved, reference, remainder), out[j])
    return [_unpacked(columns, mask) for columns in out]


def divergence_at_theta(policy: Policy, rollouts: Rollouts, sampler_temperature: float) -> Tensor:
    """How far the policy is from itself at the temperature that the responses were drawn at.

    Args:
        policy: The policy at θ.
        rollouts: n sequences.
        sampler_temperature: Temperature that they were drawn at.

    Returns:
        (n, t, 2) χ²_ik and κ_ik at θ, 0 where there is no token.

    Raises:
        NotFiniteError: If a score is not finite.
    """
    still = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in policy.theta.items()}
    (found,) = score_moved(policy, rollouts, still, [0.0], sampler_temperature=sampler_temperature)
    if found is None:
        raise NotFiniteError("A score at θ is not finite: check the checkpoint's weights.")
    return found[1].jumps


def _unpacked(columns: Tensor, mask: Tensor) -> tuple[Scores, Divergence] | None:
    scores = Scores(columns[..., 0], columns[..., 1], mask)
    try:
        require_finite(scores)
    except NotFiniteError:
        return None
    remainder = columns[..., 4:] if columns.shape[-1] > 4 else None
    return scores, Divergence(columns[..., 2:4], remainder)


def _is_trained(policy: Policy) -> bool:
    return any(p.requires_grad for p in policy.head.parameters())


def _separate(head: nn.Module) -> nn.Module:
    """The same module with the same tensors, whose parameters nobody swaps."""
    tensors = (*head.parameters(), *head.buffers())
    return copy.deepcopy(head, {id(x): x for x in tensors})


class DivergentScorer(Scorer):
    """Scores of a micro-batch and how far they are from a reference, for `functional_call`."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        batch: MicroBatch,
        reference: Reference,
        temperature: float,
        vocab_chunk: int,
        dtype: torch.dtype,
        remainder: bool,
    ) -> Tensor:
        """(m, 4) s, H, χ², κ, or (m, 6) with ρ_2 and ρ_4, a few tokens at a time."""
        hidden, head = self.hidden(batch), self.lm.get_output_embeddings()
        rows = max(1, LOGITS_HELD // self.lm.config.vocab_size)
        parts = []
        for moved, drawn, targets in zip(
            hidden.split(rows), reference.hidden.split(rows), batch.targets.split(rows), strict=True
        ):
            parts.append(
                divergence(
                    _logits(moved, head, vocab_chunk).to(dtype) / temperature,
                    _logits(drawn, reference.head, vocab_chunk).to(dtype) / reference.temperature,
                    targets,
                    remainder,
                )
            )
        return torch.cat(parts)


def _logits(hidden: Tensor, head: nn.Module, chunk: int) -> Tensor:
    return torch.cat([logits for _, logits in logit_chunks(hidden, head, chunk)], 1)


def divergence(moved: Tensor, drawn: Tensor, targets: Tensor, remainder: bool) -> Tensor:
    """Scores under one softmax, and its distance from another one.

    Args:
        moved: (m, v) logits of π' over its temperature.
        drawn: (m, v) logits of π_s over its temperature.
        targets: (m,) int64, the tokens that were drawn.
        remainder: Whether ρ is wanted too.

    Returns:
        (m, 4) s, H, χ² and κ, or (m, 6) with ρ_2 and ρ_4; not finite where a ratio overflows.
    """
    log_q = moved - moved.amax(1, keepdim=True)
    q = log_q.exp()
    total = q.sum(1)
    log_total = total.log()
    entropy = log_total - (q * log_q).sum(1) / total
    s = log_q.gather(1, targets[:, None])[:, 0] - log_total
    log_p = drawn.log_softmax(1)
    d = log_q.sub_(log_total[:, None]).sub_(log_p)
    p, jump = log_p.exp_(), d.expm1()
    columns = [s, entropy, *_moments(p, jump)]
    if remainder:
        series = d.pow(3) / 6 * (1 + d / 4 * (1 + d / 5 * (1 + d / 6)))
        rest = torch.where(d.abs() < SERIES_BELOW, series, jump - d - d.square() / 2)
        columns += _moments(p, rest)
    return torch.stack(columns, 1)


def _moments(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    square = x.square()
    second = p * square
    return second.sum(1), second.mul_(square).sum(1)
