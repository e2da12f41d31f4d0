"""The state of TRL's adaptive entropy bonus, which its checkpoints do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AdaptiveState:
    """Saves and restores the coefficient and the last entropy of a trainer."""

    def __init__(self, trainer: Any) -> None:
        """Follow a trainer.

        Args:
            trainer: TRL's GRPOTrainer with `use_adaptive_entropy`.
        """
        self._trainer = trainer

    def latest(self) -> dict[str, float]:
        """The coefficient of the next step."""
        return {"control/strength": float(self._trainer.entropy_coef)}

    def state_dict(self) -> dict[str, Any]:
        """Coefficient and last entropy, as plain JSON."""
        trainer = self._trainer
        return {"coefficient": trainer.entropy_coef, "entropy": trainer._last_world_entropy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: What `state_dict` returned.
        """
        self._trainer.entropy_coef = state["coefficient"]
        self._trainer._last_world_entropy = state["entropy"]
