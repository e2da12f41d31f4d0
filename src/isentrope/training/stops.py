"""Checkpoints at both ends of a run: before its first step, and at a step before its last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class SaveStart(TrainerCallback):
    """Saves a checkpoint before the first step."""

    def __init__(self, save: Callable[[], None]) -> None:
        """Set what saves it.

        Args:
            save: Saves the trainer's state, if it is not there; every process calls it.
        """
        self._save = save

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save a run that begins."""
        if state.global_step == 0:
            self._save()


class StopAt(TrainerCallback):
    """Stops training after a step, with a checkpoint; the schedule is not cut."""

    def __init__(self, step: int) -> None:
        """Set the step.

        Args:
            step: From 1.
        """
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop."""
        if state.global_step >= self._step:
            control.should_save = control.should_training_stop = True
