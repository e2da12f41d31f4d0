"""The strength of TRL's adaptive entropy bonus, for the log; TRL saves its state itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback


class AdaptiveStrength(TrainerCallback):
    """Reads the coefficient that a step applies, before TRL moves it on for the next."""

    def __init__(self, trainer: Any) -> None:
        """Follow a trainer.

        Args:
            trainer: TRL's GRPOTrainer with `use_adaptive_entropy`; this has to be among its
                callbacks.
        """
        self._trainer = trainer
        self._applied = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the coefficient of the step; it is 0 while entropy is above its target."""
        trainer = self._trainer
        acts = trainer._last_world_entropy <= trainer.args.entropy_target
        self._applied = float(trainer.entropy_coef) if acts else 0.0

    def latest(self) -> dict[str, float]:
        """The coefficient that the step just taken applied."""
        return {"control/strength": self._applied}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: each step reads it anew."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: What `state_dict` returned.
        """
