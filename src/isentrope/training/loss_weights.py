"""c = −∂loss/∂s of every token, from what a backward pass leaves at the hidden states.

Where the loss is a function of the log-probabilities s alone, the gradient at the hidden state h
that predicts a token is ∂loss/∂h = −c ∂s/∂h, so

    c = −⟨∂loss/∂h, ∂s/∂h⟩ / ⟨∂s/∂h, ∂s/∂h⟩
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK = 256
"""Tokens whose logits are held at once."""


@dataclass
class ForwardPass:
    """One forward pass of a loss.

    Attributes:
        ids: (b, t) token ids.
        mask: (b, t) True at tokens.
        starts: Where each response starts, or None where the inputs do not tell.
        advantages: One number per row, or None.
        hidden: (b, t, d) hidden states.
        gradient: (b, t, d) ∂loss/∂h; None until the backward pass has been here.
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
        weights: c of every token; 0 in the prompt.
        advantage: Its advantage, where the trainer has one per sequence.
    """

    ids: list[int]
    start: int
    weights: list[float]
    advantage: float | None


def sequences_of(piece: ForwardPass, head: Any, temperature: float) -> list[TrainedSequence]:
    """The sequences of a forward pass, each with c of its tokens.

    Args:
        piece: The forward pass, after its backward pass.
        head: The output embedding.
        temperature: T of the loss.

    Returns:
        One sequence per row that has tokens.
    """
    weights = torch.zeros(piece.ids.shape, dtype=torch.float64, device=piece.ids.device)
    if piece.gradient is not None:
        rows, columns = piece.gradient.any(-1)[:, :-1].nonzero(as_tuple=True)
        for part in torch.arange(len(rows), device=rows.device).split(_CHUNK):
            at = rows[part], columns[part]
            following = rows[part], columns[part] + 1
            pull = _pull(piece.hidden[at], head, piece.ids[following], temperature)
            along = (piece.gradient[at].double() * pull).sum(-1)
            size = (pull * pull).sum(-1)
            weights[following] = -torch.where(size > 0, along / size, 0.0)
    found = []
    for i in range(len(piece.ids)):
        places = piece.mask[i].nonzero()[:, 0]
        if len(places) == 0:
            continue
        c = weights[i, places].tolist()
        start = len(c) if piece.starts is None else int((places < piece.starts[i]).sum())
        first = next((k for k, x in enumerate(c) if x), len(c))
        advantage = None if piece.advantages is None else piece.advantages[i]
        ids = piece.ids[i, places].tolist()
        found.append(TrainedSequence(ids, max(1, min(start, first)), c, advantage))
    return found


def _pull(hidden: Tensor, head: Any, targets: Tensor, temperature: float) -> Tensor:
    """(m, d) float64 ∂s/∂h of each target, through any output embedding."""
    with torch.enable_grad():
        h = hidden.detach().to(next(head.parameters()).dtype).requires_grad_()
        logits = head(h).double() / temperature
        s = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        (pull,) = torch.autograd.grad(s.sum(), h)
    return pull.double()
