"""A token control inside a training run: from the batch of a step to the loss of a micro-batch.

    A'_ik = A_i + (c'_ik − c_ik) / w_i      in place of TRL's advantages
    loss += −Σ_ik d_ik H_ik                  where the control has a term on entropies

The whole batch is rewritten once, so c' and d do not depend on micro-batches or processes. TRL's
aggregation multiplies A' by w_i, which makes c' the weight −∂loss/∂s of a token while its ratio to
the sampler is 1. d is an absolute weight: TRL's accumulation over micro-batches is a sum, and the
gradients of the processes are averaged, so the term is multiplied by their number.
"""

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from isentrope.checkpoint.record.observing import evaluating
from isentrope.control.base import Rewritten, TokenRule, Tokens, touched
from isentrope.control.covariance import KlCov
from isentrope.control.feedback import Feedback
from isentrope.control.measured import kept_mass, token_influence
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.system.processes import world_size
from isentrope.system.saved_fields import SavedFields
from isentrope.update.objective import sequence_weights
from isentrope.update.optimizer_state import OptimizerLike
from isentrope.update.step import compute_step

# columns added to TRL's inputs
ENTROPY_WEIGHTS = "entropy_weights"
SEQUENCE_WEIGHTS = "sequence_weights"
PLAIN_ADVANTAGES = "plain_advantages"


class RunControl(SavedFields):
    """Applies a token control, with its feedback, to the batches of a run.

    It is one of the parts of a run that are saved with each checkpoint. With a target the strength
    is the control's own times `feedback.share`, which is negative while entropy is above the
    target; a control that is not two-sided then does nothing.

    Attributes:
        rule: The control.
        feedback: Sets the strength where there is a target.
        strength: Strength of the control at the step in progress.
        held_out_tokens: Number of tokens sampled for the control alone at the step in progress;
            None for a control that samples nothing.
    """

    SAVED = ("feedback",)

    def __init__(
        self,
        rule: TokenRule,
        feedback: Feedback,
        plain: Callable[[Rollouts], Tensor] = sequence_weights,
        *,
        seed: int = 0,
        max_grad_norm: float | None = None,
        held_out: Callable[[Policy, int], Rollouts] | None = None,
    ) -> None:
        """Start before the first observation.

        Args:
            rule: The control.
            feedback: Its feedback.
            plain: The weight of each sequence in the plain objective.
            seed: Of the control's random numbers.
            max_grad_norm: Norm to which the gradient is clipped; None for no clipping.
            held_out: Draws the evaluation batch of a step, for controls that measure influence.
        """
        self._targeted = feedback.target.kind != "none"
        self.rule = rule
        self.feedback = feedback
        self.strength = 0.0 if self._targeted else rule.strength
        self.held_out_tokens: int | None = None
        self._plain = plain
        self._held_out = held_out
        self._max_grad_norm = max_grad_norm
        self._seed = seed
        self._touched: dict[str, float] = {}
        self._seconds = 0.0

    def observe(self, step: int, entropy: float) -> float:
        """Update the feedback with the entropy before a step.

        Args:
            step: The step about to be taken, from 1.
            entropy: ĥ of all responses drawn, nats per token.

        Returns:
            The strength of the control at this step.
        """
        self.feedback.observe(step, entropy)
        if self._targeted:
            self.strength = self.rule.strength * self.feedback.share
            if self.strength < 0 and not self.rule.two_sided:
                self.feedback.forget()
        return self.strength

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
        rule: Any = self.rule
        tokens = Tokens.of(rollouts, self._plain(rollouts), step=step, seed=self._seed)
        shared = policy if world_size() == 1 else copy(policy)
        shared.share_work()
        with evaluating(policy.model):
            if rule.needs == "kept_mass":
                tokens = replace(tokens, kept_mass=kept_mass(shared, rollouts, rule.min_p))
            if rule.needs == "influence":
                assert self._held_out is not None
                E = self._held_out(policy, step)
                c = tokens.weights
                self.held_out_tokens = int(E.lengths.sum())
                plain = rollouts.with_columns(token_weights=rollouts.ragged(c))
                plain_step = compute_step(
                    shared,
                    plain,
                    optimizer,
                    objective=RECORDED,
                    max_grad_norm=self._max_grad_norm,
                )
                influence = token_influence(shared, E, rollouts, c, plain_step.preconditioner)
                tokens = replace(tokens, influence=influence)
        self.observe(step, entropy)
        rewritten = self.rewrite_tokens(tokens)
        self._seconds += time.perf_counter() - start
        return tokens, rewritten

    def rewrite_tokens(self, tokens: Tokens) -> Rewritten:
        """Rewrite the weights of a step's batch: c' and d."""
        rewritten = self.rule.rewrite(tokens, self.strength)
        if not isinstance(self.rule, KlCov):  # which leaves c, and acts on each micro-batch
            self._touched = touched(tokens, rewritten)
        return rewritten

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
        d = rewritten.entropy_weights
        padding = 0, width - tokens.mask.shape[1]  # where negative, columns are cut
        columns = {}
        if bool(change.any()):
            advantage_change = pad((change / tokens.sequence_weights[:, None])[rows], padding)
            columns["advantages"] = advantages[:, None] + advantage_change.to(advantages)
        if d is not None:
            columns[ENTROPY_WEIGHTS] = pad(d[rows], padding).to(advantages)
        if isinstance(self.rule, KlCov):
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
        if ENTROPY_WEIGHTS in inputs:
            return -(inputs[ENTROPY_WEIGHTS] * entropies).sum() * world_size()
        if not isinstance(self.rule, KlCov) or "old_per_token_logps" not in inputs:
            return 0.0
        penalty = self.rule.loss_term(
            logprobs,
            logprobs - inputs["old_per_token_logps"],
            inputs[PLAIN_ADVANTAGES],  # those of TRL may contain a normaliser
            inputs[SEQUENCE_WEIGHTS],
            inputs["completion_mask"].bool(),
        )
        return max(self.strength, 0.0) * penalty * world_size()

    def times(self) -> dict[str, float]:
        """Wall time of the control on this process since the last call, in seconds."""
        seconds = self._seconds
        self._seconds = 0.0
        return {"control/seconds": seconds}

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last batch; none of them depends on the clock."""
        cost = {} if self.held_out_tokens is None else {"tokens": float(self.held_out_tokens)}
        numbers = {"strength": self.strength} | self.feedback.latest() | self._touched | cost
        return {f"control/{name}": value for name, value in numbers.items()}
