"""The distance of two distributions over the whole vocabulary, token by token (T2).

    χ²_k = Σ_a π_s(a) (e^{d_a} − 1)² = Σ_a π'(a)²/π_s(a) − 1,     d_a = log π'(a) − log π_s(a)
    κ_k  = Σ_a π_s(a) (e^{d_a} − 1)⁴
    ρ_km = Σ_a π_s(a) R(d_a)^m,     R(d) = e^d − 1 − d − d²/2,     m = 2, 4

Logits are held for a few tokens at a time, never for all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isentrope.models.batching import MicroBatch, at_once
from isentrope.policy.head import Scorer
from isentrope.policy.token_statistics import Softmax, logit_chunks

LOGITS_HELD = 2**22
"""Largest number of logits of each policy held at once; one token at least."""

SERIES_BELOW = 0.03
"""|d| below which R(d) is taken from its series: e^d − 1 − d − d²/2 would cancel."""


@dataclass(frozen=True)
class Reference:
    """The distribution that the tokens of a micro-batch were drawn from.

    Attributes:
        hidden: (m, d) hidden states at θ.
        head: The policy's head at θ.
        temperature: Temperature of the sampler.
    """

    hidden: Tensor
    head: nn.Module
    temperature: float


def divergent_scores(
    scorer: Scorer,
    batch: MicroBatch,
    reference: Reference,
    softmax: Softmax,
    remainder: bool,
) -> Tensor:
    """Scores of a micro-batch and how far they are from a reference, a few tokens at a time.

    Args:
        scorer: The model, at any θ.
        batch: Micro-batch on the model's device.
        reference: What the tokens were drawn from.
        softmax: Of the logits.
        remainder: Whether to compute ρ too.

    Returns:
        (m, 4) s, H, χ², κ, or (m, 6) with ρ_2 and ρ_4.
    """
    hidden, head = scorer.hidden(batch), scorer.head
    rows = max(1, at_once(LOGITS_HELD) // scorer.lm.config.vocab_size)

    def logits(hidden: Tensor, head: nn.Module, temperature: float) -> Tensor:
        chunks = [x for _, x in logit_chunks(hidden, head, softmax.chunk)]
        return torch.cat(chunks, 1).to(softmax.dtype) / temperature

    pieces = (torch.split(x, rows) for x in (hidden, reference.hidden, batch.targets))
    return torch.cat(
        [
            divergence(
                logits(moved, head, softmax.temperature),
                logits(drawn, reference.head, reference.temperature),
                targets,
                remainder,
            )
            for moved, drawn, targets in zip(*pieces, strict=True)
        ]
    )


def divergence(moved: Tensor, drawn: Tensor, targets: Tensor, remainder: bool) -> Tensor:
    """Scores under one softmax, and its distance from another one.

    Args:
        moved: (m, v) logits of π' over its temperature.
        drawn: (m, v) logits of π_s over its temperature.
        targets: (m,) int64, the tokens that were drawn.
        remainder: Whether to compute ρ too.

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
