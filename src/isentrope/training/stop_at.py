"""Stops a run at a step before its last one, with a checkpoint: its schedule is not cut."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class StopAt(TrainerCallback):
    """Stops training after a step.

    Attributes:
        step: The step.
    """

    def __init__(self, step: int) -> None:
        """Set the step.

        Args:
            step: From 1.
        """
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop."""
        if state.global_step >= self.step:
            control.should_save = control.should_training_stop = True
