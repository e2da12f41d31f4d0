"""Training's values of each token: s_k, H_k, c_k = −∂loss/∂s_k and d_k = −∂loss/∂H_k.

The gradient of a loss of log-probabilities and entropies is −Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik)
for any form of the loss, so c and d replay the step. d is 0 without an entropy term.

Of other trainers only the gradient at the hidden states is seen. Where the loss is a function of
the log-probabilities s alone, the gradient at the hidden state h that predicts a token is ∂loss/∂h
= −c ∂s/∂h, so

    c = −⟨∂loss/∂h, ∂s/∂h⟩ / ⟨∂s/∂h, ∂s/∂h⟩

With an entropy term it is −c ∂s/∂h − d ∂H/∂h, and (c, d) solves the normal equations of that sum.
They are singular where ∂s/∂h and ∂H/∂h are parallel, as of a distribution over two tokens: there c
alone represents both. Both solutions are kept; the replayed gradient decides between them.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.head import logit_gradient
from isentrope.system.processes import gather, world_size

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


def sequences_of(
    piece: ForwardPass, head: Any, temperature: float
) -> tuple[Rollouts, Rollouts] | None:
    """The sequences of a forward pass, with their weights as shares of the mean over processes.

    Args:
        piece: The forward pass, after its backward pass.
        head: Hidden states in, logits out (`models.architecture`).
        temperature: T of the loss.

    Returns:
        One sequence per row that has a response: with c of a loss without entropy term, and with c
        and d of one with it; None without such rows.
    """
    solved = torch.zeros(3, *piece.ids.shape, dtype=torch.float64, device=piece.ids.device)
    if piece.gradient is not None:
        rows, columns = piece.gradient.any(-1)[:, :-1].nonzero(as_tuple=True)
        for part in torch.arange(len(rows), device=rows.device).split(_CHUNK):
            at = rows[part], columns[part]
            following = rows[part], columns[part] + 1
            gradients = _differentiate_head(
                piece.hidden[at], head, piece.ids[following], temperature
            )
            solved[:, *following] = _solve(piece.gradient[at].double(), *gradients)
    sequences: list[tuple[Any, ...]] = []
    for i, ids in enumerate(piece.ids):
        places = piece.mask[i].nonzero()[:, 0]
        weights = solved[:, i, places].cpu() / world_size()
        tokens = ids[places].cpu()
        start = len(places) if piece.starts is None else int((places < piece.starts[i]).sum())
        first_weighted = next(iter(weights[0].nonzero()[:, 0].tolist()), len(places))
        start = max(1, min(start, first_weighted))
        if start < len(places):
            advantage = None if piece.advantages is None else piece.advantages[i]
            sequences.append((tokens[:start], tokens[start:], advantage, *weights[:, start:]))
    if not sequences:
        return None
    prompts, responses, advantages, c_alone, c, d = map(list, zip(*sequences, strict=True))
    rollouts = Rollouts(
        prompts,
        responses,
        torch.arange(len(sequences)),
        advantages=None if piece.advantages is None else cast(Any, advantages),
    )
    with_entropy_term = rollouts.with_columns(token_weights=c, entropy_weights=d)
    return rollouts.with_columns(token_weights=c_alone), with_entropy_term


def _solve(gradient: Tensor, of_s: Tensor, of_entropy: Tensor) -> Tensor:
    """(3, m): c without an entropy term, then c and d with one.

    Args:
        gradient: (m, d) ∂loss/∂h.
        of_s: (m, d) ∂s/∂h.
        of_entropy: (m, d) ∂H/∂h.

    Returns:
        The three rows.
    """
    ss = (of_s * of_s).sum(-1)
    hh = (of_entropy * of_entropy).sum(-1)
    sh = (of_s * of_entropy).sum(-1)
    gs = (gradient * of_s).sum(-1)
    gh = (gradient * of_entropy).sum(-1)
    alone = -torch.where(ss > 0, gs / ss, 0.0)
    determinant = ss * hh - sh * sh
    apart = determinant > _LEAST_SINE_SQUARED * ss * hh
    safe = determinant.where(apart, 1.0)
    c = (-(gs * hh - gh * sh) / safe).where(apart, alone)
    d = (-(gh * ss - gs * sh) / safe).where(apart, 0.0)
    return torch.stack([alone, c, d])


def _differentiate_head(
    hidden: Tensor, head: Any, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(m, d) float64 ∂s/∂h and ∂H/∂h of each target, through any output embedding."""
    with torch.enable_grad():
        h = hidden.detach().to(next(head.parameters()).dtype).requires_grad_()
        logits = head(h)
    values = logits.detach().double()
    ones = torch.ones(len(targets), dtype=torch.float64, device=values.device)

    def pull_back(a: Tensor, b: Tensor | None) -> Tensor:
        gradient = logit_gradient(values, targets, a, b, temperature).to(logits.dtype)
        return torch.autograd.grad(logits, h, gradient, retain_graph=True)[0].double()

    return pull_back(ones, None), pull_back(0 * ones, ones)


@dataclass(frozen=True)
class TokenRecord:
    """Per-token records of a batch, one 1-D float64 tensor per sequence.

    Attributes:
        logprobs: s_k at the θ of the step, nats.
        entropies: H_k, nats.
        weights: c_k = −∂loss/∂s_k.
        entropy_weights: d_k = −∂loss/∂H_k; None where all are 0.
    """

    logprobs: list[Tensor]
    entropies: list[Tensor]
    weights: list[Tensor]
    entropy_weights: list[Tensor] | None = None


class TokenRecorder:
    """Records the micro-batches of a step."""

    def __init__(self) -> None:
        self._pieces: list[dict[str, Tensor]] = []

    def watch(self, logprobs: Tensor, entropies: Tensor) -> None:
        """Record a micro-batch; its weights arrive with its backward pass.

        Args:
            logprobs: (b, t) s, right-padded, part of the loss's graph.
            entropies: (b, t) H; where the loss has an entropy term, part of its graph.
        """
        piece = {"logprobs": logprobs.detach(), "entropies": entropies.detach()}
        piece["entropy_weights"] = torch.zeros_like(piece["entropies"])
        logprobs.register_hook(lambda gradient: piece.update(weights=-gradient.detach()))
        if entropies.requires_grad:  # the hook is called only where the loss depends on them
            entropies.register_hook(lambda grad: piece.update(entropy_weights=-grad.detach()))
        self._pieces.append(piece)

    def __len__(self) -> int:
        """Micro-batches recorded since the last `collect`."""
        return len(self._pieces)

    def keep(self, number: int) -> None:
        """Drop what was recorded after so many micro-batches; its backward pass failed."""
        del self._pieces[number:]

    def collect(self, lengths: list[int]) -> TokenRecord:
        """The records of all processes, in the order of the batch; every process must call this.

        Args:
            lengths: Response lengths of this process's sequences, in order.

        Returns:
            The record; the recorder is empty again.
        """
        pieces = self._pieces
        self._pieces = []

        def column(name: str) -> list[Tensor]:
            padded = [row for piece in pieces for row in piece[name].double().cpu()]
            return [row[:length] for row, length in zip(padded, lengths, strict=True)]

        names = ("logprobs", "entropies", "weights", "entropy_weights")
        of_all_processes = gather([column(name) for name in names])
        logprobs, entropies, *gradients = (
            [row for rows in columns for row in rows]
            for columns in zip(*of_all_processes, strict=True)
        )
        # the processes' gradients are averaged, so each counts for its share
        weights, entropy_weights = ([x / world_size() for x in rows] for rows in gradients)
        has_entropy_term = any(bool(x.any()) for x in entropy_weights)
        return TokenRecord(
            logprobs, entropies, weights, entropy_weights if has_entropy_term else None
        )


def policy_ratio(rollouts: Rollouts, record: TokenRecord) -> dict[str, float]:
    """π(trainer)/π(sampler) of every token; on-policy it is 1 to rounding.

    Args:
        rollouts: The batch, with the sampler's log-probabilities.
        record: The trainer's.

    Returns:
        Mean, least and largest ratio, and the largest |log ratio| in nats.
    """
    assert rollouts.sampler_logprobs is not None
    log_ratio = torch.cat(record.logprobs) - torch.cat(rollouts.sampler_logprobs)
    ratio = log_ratio.exp()
    return {
        "policy_ratio/mean": float(ratio.mean()),
        "policy_ratio/min": float(ratio.min()),
        "policy_ratio/max": float(ratio.max()),
        "policy_ratio/log_max": float(log_ratio.abs().max()),
    }


def off_policy_warning(ratio: dict[str, float], bound: float) -> str | None:
    """A sentence where the sampler is not the trained policy, by `policy_ratio`; or None.

    Args:
        ratio: Of a step.
        bound: Largest |log ratio| of a token, in nats, that rounding explains.

    Returns:
        The sentence.
    """
    worst = ratio["policy_ratio/log_max"]
    if worst <= bound:
        return None
    return (
        f"The policy that is trained gives a token another log-probability than the sampler, by "
        f"up to {worst:.2g} nats where rounding explains {bound:.0e}: the batch is not on-policy "
        "to rounding (a sampler of lower precision, a batch used more than once, or a filtered "
        "sampler)."
    )
