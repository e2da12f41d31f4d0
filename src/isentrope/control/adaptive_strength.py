"""The coefficient of TRL's adaptive entropy bonus, for the log; TRL saves its state itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback


class AdaptiveStrength(TrainerCallback):
    """Reads the coefficient that a step applies, before TRL updates it for the next step."""

    def __init__(self, trainer: Any) -> None:
        """Attach to a trainer.

        Args:
            trainer: TRL's GRPOTrainer with `use_adaptive_entropy`; this object has to be one of
                its callbacks.
        """
        self._trainer = trainer
        self._applied = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the coefficient of the step; it is 0 while entropy is above its target."""
        trainer = self._trainer
        active = trainer._last_world_entropy <= trainer.args.entropy_target
        self._applied = float(trainer.entropy_coef) if active else 0.0

    def latest(self) -> dict[str, float]:
        """The coefficient that the last step applied."""
        return {"control/strength": self._applied}

    def state_dict(self) -> dict[str, Any]:
        """An empty state: the coefficient is read at each step."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""
