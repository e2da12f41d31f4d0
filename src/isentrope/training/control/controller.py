"""A token control with its feedback, as a run has it: seen entropies in, rewritten batches out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from isentrope.processes import rank
from isentrope.training.control.base import TokenRule
from isentrope.training.control.feedback import Feedback
from isentrope.training.control.tokens import Rewritten, Tokens, touched

log = logging.getLogger("isentrope")


class Controller:
    """One of the parts of a run that are saved with each checkpoint.

    With a target the strength is the control's own times `feedback.share`, which is negative where
    entropy is to fall; a control that is not two-sided then does nothing.

    Attributes:
        control: The control.
        feedback: What sets its strength where there is a target.
        strength: How hard the control acts at the step in progress.
        own_tokens: Tokens that were sampled for the control alone at the step in progress; None
            for a control that samples nothing.
    """

    def __init__(self, control: TokenRule, feedback: Feedback) -> None:
        """Start with nothing seen.

        Args:
            control: The control.
            feedback: Its feedback.

        Raises:
            ValueError: If there is a target, and the control's strength does not steer entropy.
        """
        targeted = feedback.target.kind != "none"
        if targeted and not control.targetable:
            raise ValueError(
                f"{type(control).__name__} cannot use a target: its strength moves entropy neither "
                "up nor down by itself. Set control.target.kind=none."
            )
        self.control, self.feedback = control, feedback
        self.strength = 0.0 if targeted else control.strength
        self.own_tokens: int | None = None
        self._touched: dict[str, float] = {}
        self._warned = False

    def observe(self, step: int, entropy: float) -> float:
        """See the entropy before a step.

        Args:
            step: The step about to be taken, from 1.
            entropy: ĥ of all responses drawn, nats per token.

        Returns:
            How hard the control is to act.
        """
        self.feedback.observe(step, entropy)
        if self.feedback.target.kind != "none":
            self.strength = self.control.strength * self.feedback.share
            if self.strength < 0 and not self.control.two_sided:
                self.feedback.forget()
        return self.strength

    def rewrite(self, tokens: Tokens) -> Rewritten:
        """Rewrite the weights of a step's batch.

        Args:
            tokens: The whole batch.

        Returns:
            c' and d.

        Raises:
            ValueError: If a weight is not finite.
        """
        self._tell_between(tokens)
        made = self.control.rewrite(tokens, self.strength)
        parts = [made.weights] if made.entropy_weights is None else [*vars(made).values()][:2]
        if not all(bool(part.isfinite().all()) for part in parts):
            raise ValueError(
                f"{type(self.control).__name__} made weights that are not finite at step "
                f"{tokens.step}, with strength {self.strength:g}."
            )
        # what acts through ratios leaves c as it is: what it touches is not known here
        found = touched(tokens, made) if self.control.on_policy else {}
        self._touched = {f"control/{name}": value for name, value in found.items()}
        return made

    def _tell_between(self, tokens: Tokens) -> None:
        """Warn once where rewards between wrong and `right` are taken as wrong."""
        right = getattr(self.control, "right", None)
        if right is None or self._warned:
            return
        rewards = tokens.rewards
        between = rewards[(rewards > rewards.min()) & (rewards < right)]
        if len(between) == 0:
            return
        self._warned = True
        if rank() == 0:
            log.warning(
                "%s takes rewards below control.options.right=%g as incorrect, and %d of the %d "
                "responses of step %d earned less than that and more than the least reward (%g, "
                "for instance): lower control.options.right if they are correct.",
                *(type(self.control).__name__, right, len(between), len(rewards), tokens.step),
                float(between[0]),
            )

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last batch; none of them depends on the clock."""
        cost = {} if self.own_tokens is None else {"control/tokens": float(self.own_tokens)}
        return {"control/strength": self.strength} | self.feedback.latest() | self._touched | cost

    def state_dict(self) -> dict[str, Any]:
        """The feedback's state, as plain JSON."""
        return {"feedback": self.feedback.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: What `state_dict` returned.
        """
        self.feedback.load_state_dict(state["feedback"])
