"""A token control inside a training run: from the batch of a step to the loss of a micro-batch.

    A'_ik = A_i + (c'_ik − c_ik) / w_i      in place of TRL's advantages
    loss += −Σ_ik d_ik H_ik                  where the control has a term on entropies

The whole batch is rewritten once, so c' and d do not depend on micro-batches or processes. TRL's
aggregation multiplies A' by w_i, which makes c' the weight −∂loss/∂s of a token while its ratio to
the sampler is 1. d is an absolute weight: TRL's accumulation over micro-batches is a sum, and the
gradients of the processes are averaged, so the term is multiplied by their number.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isentrope.control.controller import Controller
from isentrope.control.influence_clip import InfluenceClip
from isentrope.control.kl_cov import KlCov
from isentrope.control.lp_reg import LpReg
from isentrope.control.measured import (
    HeldOutSample,
    kept_mass,
    preconditioner,
    token_influence,
)
from isentrope.control.tokens import Rewritten, Tokens
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.recording.observing import evaluating
from isentrope.system.processes import world_size
from isentrope.update.optimizer_state import OptimizerLike

ENTROPY_WEIGHTS, SEQUENCE_WEIGHTS = "entropy_weights", "sequence_weights"
PLAIN_ADVANTAGES = "plain_advantages"
"""Columns added to TRL's inputs."""


class RunControl:
    """Applies a token control to the batches of a run.

    Attributes:
        controller: The control and its feedback, saved with each checkpoint.
    """

    def __init__(
        self,
        controller: Controller,
        objective: str,
        *,
        max_response_length: int | None = None,
        clip_high: float | None = None,
        micro_batch: int | None = None,
        max_grad_norm: float | None = None,
        seed: int = 0,
        held_out: HeldOutSample | None = None,
    ) -> None:
        """Set up the control for a plain objective.

        Args:
            controller: The control and its feedback.
            objective: The plain objective, one of `update.objective.OBJECTIVES`.
            max_response_length: L of "dr_grpo".
            clip_high: ε_high of "cispo".
            micro_batch: Responses per backward pass of "bnpo".
            max_grad_norm: Norm to which the gradient is clipped; None for no clipping.
            seed: Seed of the random numbers of controls.
            held_out: Evaluation batches of controls that measure influence, which need them.
        """
        self.controller = controller
        self._objective, self._seed, self._held_out = objective, seed, held_out
        self._length, self._max_grad_norm = max_response_length, max_grad_norm
        self._sizes = {"clip_high": clip_high, "micro_batch": micro_batch}
        self._seconds = 0.0

    def rewrite(
        self,
        policy: Policy,
        rollouts: Rollouts,
        entropy: float,
        step: int,
        optimizer: OptimizerLike,
    ) -> tuple[Tokens, Rewritten]:
        """Rewrite the batch of a step; every process must call this.

        Args:
            policy: The live policy.
            rollouts: The whole batch.
            entropy: ĥ of all responses drawn for it, nats per token.
            step: The step, from 1.
            optimizer: Its state before the step.

        Returns:
            The input of the control, and the rewritten batch.
        """
        start = time.perf_counter()
        tokens = self._tokens(policy, rollouts, step, optimizer)
        self.controller.observe(step, entropy)
        rewritten = self.controller.rewrite(tokens)
        self._seconds += time.perf_counter() - start
        return tokens, rewritten

    def _tokens(
        self, policy: Policy, rollouts: Rollouts, step: int, optimizer: OptimizerLike
    ) -> Tokens:
        objective = self._objective, self._length
        tokens = Tokens.of(rollouts, *objective, step=step, seed=self._seed, **self._sizes)
        control = self.controller.control
        if isinstance(control, LpReg):
            with evaluating(policy.model):
                mass = kept_mass(policy, rollouts, control.min_p)
            tokens = replace(tokens, kept_mass=mass)
        if isinstance(control, InfluenceClip):
            assert self._held_out is not None
            with evaluating(policy.model):
                E, c = self._held_out.draw(policy, step), tokens.weights
                self.controller.own_tokens = int(E.lengths.sum())
                P = preconditioner(policy, rollouts, c, optimizer, self._max_grad_norm)
                of_entropy, of_reward = token_influence(policy, E, rollouts, c, P)
            tokens = replace(tokens, influence=of_entropy, reward_influence=of_reward)
        return tokens

    def columns(
        self, tokens: Tokens, rewritten: Rewritten, advantages: Tensor, rows: slice, width: int
    ) -> dict[str, Tensor]:
        """The columns of TRL's inputs for the rows of this process.

        Args:
            tokens: The whole batch.
            rewritten: The batch rewritten by the control.
            advantages: (b,) TRL's own for these rows.
            rows: The rows of the batch on this process.
            width: Number of tokens to which TRL pads these rows.

        Returns:
            `advantages`, (b, width) where a token's weight differs from the plain one, and the
            columns of the loss's other terms.
        """
        change = rewritten.weights - tokens.weights
        columns = {}
        if bool(change.any()):
            difference = (change / tokens.sequence_weights[:, None])[rows]
            columns["advantages"] = advantages[:, None] + _resize(difference, width, advantages)
        if rewritten.entropy_weights is not None:
            columns[ENTROPY_WEIGHTS] = _resize(rewritten.entropy_weights[rows], width, advantages)
        if isinstance(self.controller.control, KlCov):
            columns[SEQUENCE_WEIGHTS] = tokens.sequence_weights[rows].to(advantages)
            columns[PLAIN_ADVANTAGES] = tokens.advantages[rows].to(advantages)
        return columns

    def loss_term(
        self, inputs: Mapping[str, Any], logprobs: Tensor, entropies: Tensor
    ) -> Tensor | float:
        """The term that the control adds to the loss of a micro-batch.

        Args:
            inputs: TRL's inputs, with the columns from `columns`.
            logprobs: (b, t) s, with its graph.
            entropies: (b, t) H, with its graph.

        Returns:
            A scalar, 0 where the control has no such term.
        """
        term: Tensor | float = 0.0
        if ENTROPY_WEIGHTS in inputs:
            term = -(inputs[ENTROPY_WEIGHTS] * entropies).sum() * world_size()
        control = self.controller.control
        if isinstance(control, KlCov) and "old_per_token_logps" in inputs:
            penalty = control.loss_term(
                logprobs,
                logprobs - inputs["old_per_token_logps"],
                inputs[PLAIN_ADVANTAGES],  # those of TRL may contain a normaliser
                inputs[SEQUENCE_WEIGHTS],
                inputs["completion_mask"].bool(),
            )
            term = term + max(self.controller.strength, 0.0) * penalty * world_size()
        return term

    def times(self) -> dict[str, float]:
        """Wall time of the control on this process since the last call, in seconds."""
        seconds, self._seconds = self._seconds, 0.0
        return {"control/seconds": seconds}


def _resize(values: Tensor, width: int, like: Tensor) -> Tensor:
    """(b, t) as (b, width), padded with 0, in the type and on the device of another tensor."""
    out = torch.zeros(len(values), width, dtype=torch.float64)
    shared = min(width, values.shape[1])
    out[:, :shared] = values[:, :shared]
    return out.to(like)
