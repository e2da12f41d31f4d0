"""Training's values of each token: s_k, H_k, c_k = −∂loss/∂s_k and d_k = −∂loss/∂H_k.

The gradient of a loss of log-probabilities and entropies is −Σ_ik (c_ik ∂s_ik + d_ik ∂H_ik)
for any form of the loss, so c and d replay the step. d is 0 without an entropy term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.nouns.rollouts import Rollouts
from isentrope.system.processes import gather, world_size

OFF_POLICY = 1e-3
"""Largest |log ratio| of a token, in nats, that is called rounding."""


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

    def collect(self, lengths: list[int]) -> TokenRecord:
        """The records of all processes, in the order of the batch; every process must call this.

        Args:
            lengths: Response lengths of this process's sequences, in order.

        Returns:
            The record; the recorder is empty again.
        """
        pieces, self._pieces = self._pieces, []

        def column(name: str) -> list[Tensor]:
            padded = [row for piece in pieces for row in piece[name].double().cpu()]
            return [row[:length].clone() for row, length in zip(padded, lengths, strict=True)]

        def cotangents(name: str) -> list[Tensor]:
            # the processes' gradients are averaged, so each counts for its share
            return [weights / world_size() for weights in column(name)]

        names = ("logprobs", "entropies")
        mine = [*map(column, names), *map(cotangents, ("weights", "entropy_weights"))]
        logprobs, entropies, weights, entropy_weights = (
            [x for part in parts for x in part] for parts in zip(*gather(mine), strict=True)
        )
        bonus = any(bool(x.any()) for x in entropy_weights)
        return TokenRecord(logprobs, entropies, weights, entropy_weights if bonus else None)


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


def off_policy_warning(ratio: dict[str, float]) -> str | None:
    """A sentence where the sampler is not the trained policy, by `policy_ratio`; or None."""
    worst = ratio["policy_ratio/log_max"]
    if worst <= OFF_POLICY and not math.isnan(worst):
        return None
    return (
        f"The policy that is trained gives a token another log-probability than the sampler, by "
        f"up to {worst:.2g} nats: the batch is not on-policy to rounding (a sampler of lower "
        "precision, a batch used more than once, or a filtered sampler)."
    )
