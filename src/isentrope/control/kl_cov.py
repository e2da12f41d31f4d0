"""KL-Cov: a penalty on the tokens of largest covariance between log-probability and advantage.

    loss += Σ w_i β |log r_ik|   over the share q of the tokens with the largest cov_ik
    cov_ik = (A_i − Ā)(s_ik − s̄),   so that c' = c − w_i β sign(log r)

r is the ratio of the current policy to the sampler: at the first use of a batch it is 1 and the
term has no gradient, so KL-Cov needs trainer.num_iterations > 1. Source: PRIME-RL/
Entropy-Mechanism-of-RL, `compute_policy_loss_kl_cov` (arXiv 2505.22617); q = .2 % (7B) or .02 %
(32B), β = 1; no ratio is clipped.

s and r are those of the step, so the term is added to the loss of each micro-batch, and means and
the largest share are of the micro-batch, as in the source. Its result depends on
training.micro_batch and on the number of processes, as does that of `adaptive` and of no other
control.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from isentrope.control.base import NotNegative, Part, TokenRule, lowest_share, options
from isentrope.control.tokens import Rewritten, Tokens
from isentrope.control.trl_fields import TrainerFields

UNCLIPPED = 1e6
"""A clip bound ε that no ratio reaches."""


@options
class KlCov(TokenRule, TrainerFields):
    """Penalise |log r| of tokens with a large covariance.

    Attributes:
        strength: β.
        share: q.
    """

    strength: NotNegative = 1.0
    share: Part = 0.002
    targetable: ClassVar[bool] = True

    def fields(self) -> dict[str, Any]:
        """Fields of TRL's configuration: no ratio is clipped."""
        return {"epsilon": UNCLIPPED, "epsilon_high": UNCLIPPED}

    def apply(self, tokens: Tokens, strength: float) -> Rewritten:
        """Return the weights unchanged; `loss_term` acts on each micro-batch."""
        return Rewritten(tokens.weights)

    def loss_term(
        self,
        logprobs: Tensor,
        log_ratios: Tensor,
        advantages: Tensor,
        weights: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Σ w_i |log r_ik| over the penalised tokens; the loss has β times this sum.

        Args:
            logprobs: (b, t) s of the micro-batch, at the current θ.
            log_ratios: (b, t) log r, with its graph.
            advantages: (b,) A_i.
            weights: (b,) w_i.
            mask: (b, t) bool, where there is a token.

        Returns:
            A scalar.
        """
        s, A = logprobs.detach(), advantages[:, None].expand_as(logprobs)
        covariance = (A - A[mask].mean()) * (s - s[mask].mean())
        penalised = lowest_share(-covariance.cpu(), mask.cpu(), self.share).to(logprobs.device)
        return torch.where(penalised, weights[:, None] * log_ratios.abs(), 0.0).sum()
