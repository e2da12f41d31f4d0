"""A token control with its feedback: from measured entropies to rewritten batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from isentrope.control.base import TokenRule
from isentrope.control.feedback import Feedback
from isentrope.control.tokens import Rewritten, Tokens, touched
from isentrope.system.processes import rank

log = logging.getLogger("isentrope")


class Controller:
    """One of the parts of a run that are saved with each checkpoint.

    With a target the strength is the control's own times `feedback.share`, which is negative while
    entropy is above the target; a control that is not two-sided then does nothing.

    Attributes:
        control: The control.
        feedback: Sets the strength where there is a target.
        strength: Strength of the control at the step in progress.
        own_tokens: Number of tokens sampled for the control alone at the step in progress; None
            for a control that samples nothing.
    """

    def __init__(self, control: TokenRule, feedback: Feedback) -> None:
        """Start before the first observation.

        Args:
            control: The control.
            feedback: Its feedback.
        """
        targeted = feedback.target.kind != "none"
        self.control, self.feedback = control, feedback
        self.strength = 0.0 if targeted else control.strength
        self.own_tokens: int | None = None
        self._touched: dict[str, float] = {}
        self._warned = False

    def observe(self, step: int, entropy: float) -> float:
        """Update the feedback with the entropy before a step.

        Args:
            step: The step about to be taken, from 1.
            entropy: ĥ of all responses drawn, nats per token.

        Returns:
            The strength of the control at this step.
        """
        self.feedback.observe(step, entropy)
        if self.feedback.target.kind != "none":
            self.strength = self.control.strength * self.feedback.share
            if self.strength < 0 and not self.control.two_sided:
                self.feedback.forget()
        return self.strength

    def rewrite(self, tokens: Tokens) -> Rewritten:
        """Rewrite the weights of a step's batch.

        Returns:
            c' and d.

        Raises:
            ValueError: If a weight is not finite.
        """
        self._warn_of_partial_rewards(tokens)
        rewritten = self.control.rewrite(tokens, self.strength)
        parts = [x for x in (rewritten.weights, rewritten.entropy_weights) if x is not None]
        if not all(bool(part.isfinite().all()) for part in parts):
            raise ValueError(
                f"{type(self.control).__name__} returned weights that are not finite at step "
                f"{tokens.step}, with strength {self.strength:g}."
            )
        # a control that acts through ratios leaves c unchanged: its effect is not known here
        effect = touched(tokens, rewritten) if self.control.on_policy else {}
        self._touched = {f"control/{name}": value for name, value in effect.items()}
        return rewritten

    def _warn_of_partial_rewards(self, tokens: Tokens) -> None:
        """Warn once where rewards between the lowest and `right` count as incorrect."""
        right = getattr(self.control, "right", None)
        if right is None or self._warned:
            return
        rewards = tokens.rewards
        partial = rewards[(rewards > rewards.min()) & (rewards < right)]
        if len(partial) == 0:
            return
        self._warned = True
        if rank() == 0:
            log.warning(
                "%s counts rewards below control.options.right=%g as incorrect, and %d of the %d "
                "responses of step %d have a reward below that and above the lowest one (%g, "
                "for instance): lower control.options.right if they are correct.",
                *(type(self.control).__name__, right, len(partial), len(rewards), tokens.step),
                float(partial[0]),
            )

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last batch; none of them depends on the clock."""
        cost = {} if self.own_tokens is None else {"control/tokens": float(self.own_tokens)}
        return {"control/strength": self.strength} | self.feedback.latest() | self._touched | cost

    def state_dict(self) -> dict[str, Any]:
        """The feedback's state, as plain JSON."""
        return {"feedback": self.feedback.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""
        self.feedback.load_state_dict(state["feedback"])
