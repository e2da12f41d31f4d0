"""c = −∂loss/∂s and d = −∂loss/∂H of every token, from the gradient at the hidden states.

Where the loss is a function of the log-probabilities s alone, the gradient at the hidden state h
that predicts a token is ∂loss/∂h = −c ∂s/∂h, so

    c = −⟨∂loss/∂h, ∂s/∂h⟩ / ⟨∂s/∂h, ∂s/∂h⟩

With an entropy term it is −c ∂s/∂h − d ∂H/∂h, and (c, d) solves the normal equations of that sum.
They are singular where ∂s/∂h and ∂H/∂h are parallel, as of a distribution over two tokens: there c
alone represents both. Both solutions are kept; the replayed gradient decides between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope.policy.head import logit_gradient

_CHUNK = 256
"""Tokens whose logits are held at once."""
_LEAST_SINE_SQUARED = 1e-7
"""Angle between ∂s/∂h and ∂H/∂h below which float32 does not separate c and d."""


@dataclass
class ForwardPass:
    """One forward pass of a loss.

    Attributes:
        ids: (b, t) token ids.
        mask: (b, t) True at tokens.
        starts: Where each response starts, or None where the inputs do not contain it.
        advantages: One number per row, or None.
        hidden: (b, t, d) hidden states.
        gradient: (b, t, d) ∂loss/∂h; None before the backward pass.
    """

    ids: Tensor
    mask: Tensor
    starts: list[int] | None
    advantages: list[float] | None
    hidden: Tensor
    gradient: Tensor | None = None


@dataclass
class TrainedSequence:
    """One sequence of a loss.

    Attributes:
        ids: Its tokens.
        start: Where its response starts.
        weights: c of every token for a loss without entropy term; 0 in the prompt.
        both: c and d of every token for a loss with one; 0 in the prompt.
        advantage: Its advantage, where the trainer has one per sequence.
    """

    ids: list[int]
    start: int
    weights: list[float]
    both: tuple[list[float], list[float]]
    advantage: float | None


def sequences_of(piece: ForwardPass, head: Any, temperature: float) -> list[TrainedSequence]:
    """The sequences of a forward pass, each with c of its tokens.

    Args:
        piece: The forward pass, after its backward pass.
        head: Hidden states in, logits out (`models.logits`).
        temperature: T of the loss.

    Returns:
        One sequence per row that has tokens.
    """
    solved = torch.zeros(3, *piece.ids.shape, dtype=torch.float64, device=piece.ids.device)
    if piece.gradient is not None:
        rows, columns = piece.gradient.any(-1)[:, :-1].nonzero(as_tuple=True)
        for part in torch.arange(len(rows), device=rows.device).split(_CHUNK):
            at = rows[part], columns[part]
            following = rows[part], columns[part] + 1
            gradients = _grad_hidden(piece.hidden[at], head, piece.ids[following], temperature)
            solved[:, *following] = _solve(piece.gradient[at].double(), *gradients)
    weights = []
    for i in range(len(piece.ids)):
        places = piece.mask[i].nonzero()[:, 0]
        if len(places) == 0:
            continue
        c, *both = solved[:, i, places].tolist()
        start = len(c) if piece.starts is None else int((places < piece.starts[i]).sum())
        first = next((k for k, x in enumerate(c) if x), len(c))
        advantage = None if piece.advantages is None else piece.advantages[i]
        ids = piece.ids[i, places].tolist()
        start = max(1, min(start, first))
        weights.append(TrainedSequence(ids, start, c, (both[0], both[1]), advantage))
    return weights


def _solve(gradient: Tensor, of_s: Tensor, of_entropy: Tensor) -> Tensor:
    """(3, m): c without an entropy term, then c and d with one.

    Args:
        gradient: (m, d) ∂loss/∂h.
        of_s: (m, d) ∂s/∂h.
        of_entropy: (m, d) ∂H/∂h.

    Returns:
        The three rows.
    """
    ss, hh = (of_s * of_s).sum(-1), (of_entropy * of_entropy).sum(-1)
    sh = (of_s * of_entropy).sum(-1)
    gs, gh = (gradient * of_s).sum(-1), (gradient * of_entropy).sum(-1)
    alone = -torch.where(ss > 0, gs / ss, 0.0)
    determinant = ss * hh - sh * sh
    apart = determinant > _LEAST_SINE_SQUARED * ss * hh
    safe = determinant.where(apart, 1.0)
    c = (-(gs * hh - gh * sh) / safe).where(apart, alone)
    d = (-(gh * ss - gs * sh) / safe).where(apart, 0.0)
    return torch.stack([alone, c, d])


def _grad_hidden(
    hidden: Tensor, head: Any, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(m, d) float64 ∂s/∂h and ∂H/∂h of each target, through any output embedding."""
    with torch.enable_grad():
        h = hidden.detach().to(next(head.parameters()).dtype).requires_grad_()
        logits = head(h)
    at = logits.detach().double()
    one = torch.ones(len(targets), dtype=torch.float64, device=at.device)
    of_s = logit_gradient(at, targets, one, None, temperature)
    of_entropy = logit_gradient(at, targets, torch.zeros_like(one), one, temperature)
    (s,) = torch.autograd.grad(logits, h, of_s.to(logits.dtype), retain_graph=True)
    (entropy,) = torch.autograd.grad(logits, h, of_entropy.to(logits.dtype))
    return s.double(), entropy.double()
