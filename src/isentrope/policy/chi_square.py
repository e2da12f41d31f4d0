"""How far a step moves the distribution of every token, over the whole vocabulary (T2).

π' is the policy at θ + ηv, π_s the distribution that the tokens were drawn from. χ²_k
is the variance of the next factor of an importance weight with the token integrated
out: it counts the tokens that no response of the batch contains. ρ is the same for what a factor is
beyond its second order. Both policies are evaluated on one micro-batch: hidden states at θ once,
those at every θ + ηv beside them.

    χ²_k = Σ_a π_s(a) (e^{d_a} − 1)² = Σ_a π'(a)²/π_s(a) − 1,     d_a = log π'(a) − log π_s(a)
    κ_k  = Σ_a π_s(a) (e^{d_a} − 1)⁴
    ρ_km = Σ_a π_s(a) R(d_a)^m,     R(d) = e^d − 1 − d − d²/2,     m = 2, 4

Logits are held for a few tokens at a time, never for all.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isentrope.models.architecture import text_config
from isentrope.models.batching import MicroBatch
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, zeros
from isentrope.policy.head import Scorer
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import collect_columns
from isentrope.policy.token_statistics import NotFiniteError, Scores, Softmax, rows_held


@dataclass(frozen=True)
class Divergence:
    """How far the distribution at each token of n responses moves, on the CPU.

    Attributes:
        jumps: (n, t, 2) float64, χ²_ik and κ_ik, or (n, t, 1) χ²_ik alone; 0 where no token is.
        remainder: (n, t, 2) float64, ρ_ik2 and ρ_ik4; None where not requested.
    """

    jumps: Tensor
    remainder: Tensor | None = None


@dataclass(frozen=True)
class RowSampler:
    """What is known of the distribution π_s that tokens were drawn from.

    Attributes:
        temperature: Of the scorer's logits.
        noise: Mean square and mean fourth power of π/π_s − 1 per token that come in addition, of
            rounding or of another engine.
    """

    temperature: float
    noise: tuple[float, float] = (0.0, 0.0)

    def farther(self, jumps: Tensor, mask: Tensor) -> Tensor:
        """Bounds of χ² and κ with the noise, by the triangle inequality of the norms of π'/π_s − 1.

        Args:
            jumps: (n, t, 2) χ² and κ without it.
            mask: (n, t) bool.

        Returns:
            (n, t, 2), 0 where no token is.
        """
        if not any(self.noise):
            return jumps
        powers = jumps.new_tensor([2.0, 4.0])
        sizes = jumps.new_tensor(self.noise) ** (1 / powers)
        bounds = (jumps ** (1 / powers) + sizes) ** powers
        return bounds.masked_fill(~mask[..., None], 0.0)


def score_moved(
    policy: Policy,
    rollouts: Rollouts,
    direction: Vector,
    etas: Sequence[float],
    *,
    sampler: RowSampler | None = None,
    remainder: bool = False,
) -> list[tuple[Scores, Divergence] | None]:
    """Score every response at θ + ηv for several η, and how far each distribution has moved.

    Args:
        policy: The policy at θ.
        rollouts: n sequences that the policy at θ drew.
        direction: v.
        etas: Learning rates.
        sampler: What they were drawn from; the policy by default.
        remainder: Whether to compute ρ too.

    Returns:
        Scores and divergences, one pair per learning rate; None where a score is not finite.
    """
    if not etas:
        return []
    sampler = sampler or RowSampler(policy.temperature)
    arguments = (policy.softmax, sampler.temperature, remainder)
    head = policy.head
    is_frozen = not any(p.requires_grad for p in head.parameters())
    if not is_frozen:
        # the same module with the same tensors, which `functional_call` does not replace
        tensors = (*head.parameters(), *head.buffers())
        head = copy.deepcopy(head, {id(x): x for x in tensors})

    def packed(batch: MicroBatch) -> list[Tensor]:
        # given θ by name, as the moved policy is: the same passes, so equal up to rounding
        drawn = Reference(policy.packed_hidden(batch, policy.theta), head)
        points = (policy.parameters_along(direction, eta) for eta in etas)
        if is_frozen:
            hidden = [policy.packed_hidden(batch, point) for point in points]
            return policy.at(policy.theta, compare_hidden, batch, hidden, drawn, *arguments)
        return [policy.at(point, compare_at_point, batch, drawn, *arguments) for point in points]

    with torch.no_grad():
        columns_of_rates = collect_columns(policy, rollouts, packed)
    moved_scores: list[tuple[Scores, Divergence] | None] = []
    for columns in columns_of_rates:
        scores = Scores(columns[..., 0], columns[..., 1], rollouts.mask)
        jumps = sampler.farther(columns[..., 2:4], rollouts.mask)
        divergence = Divergence(jumps, columns[..., 4:] if remainder else None)
        is_finite = bool(columns[..., :2].isfinite().all())
        moved_scores.append((scores, divergence) if is_finite else None)
    return moved_scores


def divergence_at_theta(policy: Policy, rollouts: Rollouts, sampler: RowSampler) -> Tensor:
    """How far the policy is from the distribution that the responses were drawn from.

    Args:
        policy: The policy at θ.
        rollouts: n sequences.
        sampler: What is known of it.

    Returns:
        (n, t, 2) χ²_ik and κ_ik at θ, 0 where there is no token.

    Raises:
        NotFiniteError: If a score is not finite.
    """
    (moved_scores,) = score_moved(policy, rollouts, zeros(policy.theta), [0.0], sampler=sampler)
    if moved_scores is None:
        raise NotFiniteError("A score at θ is not finite: check the checkpoint's weights.")
    return moved_scores[1].jumps


LOGITS_COMPARED = 2**18
"""Logits compared at a time on a CPU, whose cache holds what is computed of them."""

SERIES_BELOW = 0.03
"""|d| below which R(d) is taken from its series: e^d − 1 − d − d²/2 would cancel."""


@dataclass(frozen=True)
class Reference:
    """What gives the distributions π_s that the tokens of a micro-batch were drawn from.

    Attributes:
        hidden: (m, d) hidden states.
        head: The output embedding.
    """

    hidden: Tensor
    head: nn.Module


def compare_at_point(
    scorer: Scorer,
    batch: MicroBatch,
    drawn: Reference,
    softmax: Softmax,
    temperature: float,
    remainder: bool,
) -> Tensor:
    """Scores of a micro-batch at the scorer's own θ, and how far they are from a reference.

    Args:
        scorer: The model, at any θ.
        batch: Micro-batch on the model's device.
        drawn: The reference.
        softmax: Of the logits.
        temperature: Temperature of the sampler.
        remainder: Whether to compute ρ too.

    Returns:
        (m, 4) s, H, χ², κ, or (m, 6) with ρ_2 and ρ_4.
    """
    hidden = scorer.hidden(batch)
    (columns,) = compare_hidden(scorer, batch, [hidden], drawn, softmax, temperature, remainder)
    return columns


def compare_hidden(
    scorer: Scorer,
    batch: MicroBatch,
    points: Sequence[Tensor],
    drawn: Reference,
    softmax: Softmax,
    temperature: float,
    remainder: bool,
) -> list[Tensor]:
    """The same of several points whose output embedding is the scorer's, a few tokens at a time.

    The reference is computed once for all points, whose logits are held one point at a time.

    Args:
        scorer: The model.
        batch: Micro-batch on the model's device.
        points: (m, d) hidden states, one tensor per point.
        drawn: The reference.
        softmax: Of the logits.
        temperature: Temperature of the sampler.
        remainder: Whether to compute ρ too.

    Returns:
        One tensor per point, as of `compare_at_point`.
    """
    vocabulary = int(text_config(scorer.lm).vocab_size)
    rows = rows_held(vocabulary, scorer.device)
    compared = max(1, LOGITS_COMPARED // vocabulary) if scorer.device.type == "cpu" else rows
    columns: list[list[Tensor]] = [[] for _ in points]
    for start in range(0, len(batch.targets), rows):
        block = slice(start, start + rows)
        targets = torch.split(batch.targets[block], compared)
        reference: list[tuple[Tensor, Tensor]] = []
        for logits in drawn.head(drawn.hidden[block]).split(compared):
            log_p = (logits.to(softmax.dtype) / temperature).log_softmax(1)
            reference.append((log_p, log_p.exp()))
        for of_point, hidden in zip(columns, points, strict=True):
            pieces = scorer.head(hidden[block]).split(compared)  # of one point at a time
            for logits, (log_p, p), drawn_tokens in zip(pieces, reference, targets, strict=True):
                scaled = logits.to(softmax.dtype) / softmax.temperature
                of_point.append(compare_softmaxes(scaled, log_p, p, drawn_tokens, remainder))
    return [torch.cat(of_point) for of_point in columns]


def compare_softmaxes(
    logits: Tensor, log_p: Tensor, p: Tensor, targets: Tensor, remainder: bool
) -> Tensor:
    """Scores under one softmax, and its distance from another one.

    Args:
        logits: (m, v) logits of π' over its temperature.
        log_p: (m, v) log π_s.
        p: (m, v) π_s.
        targets: (m,) int64, the tokens that were drawn.
        remainder: Whether to compute ρ too.

    Returns:
        (m, 4) s, H, χ² and κ, or (m, 6) with ρ_2 and ρ_4; not finite where a ratio overflows.
    """
    log_q = logits - logits.amax(1, keepdim=True)  # at most 0: no exponential overflows
    q = log_q.exp()
    total = q.sum(1)
    log_total = total.log()
    entropy = log_total - (q * log_q).sum(1) / total
    s = log_q.gather(1, targets[:, None])[:, 0] - log_total
    d = log_q.sub_(log_total[:, None]).sub_(log_p)
    jump = d.expm1()  # π'/π_s − 1, to full precision where the two are nearly equal
    columns = [s, entropy, *_average_powers(p, jump)]
    if remainder:
        series = d.pow(3) / 6 * (1 + d / 4 * (1 + d / 5 * (1 + d / 6)))
        third_order = torch.where(d.abs() < SERIES_BELOW, series, jump - d - d.square() / 2)
        columns += _average_powers(p, third_order)
    return torch.stack(columns, 1)


def _average_powers(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Second and fourth moment of x (m, v) under p."""
    square = x.square()
    second = p * square
    return second.sum(1), second.mul_(square).sum(1)
