"""Checkpoints of a trainer of transformers as complete folders `training_state/step_N`, or none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from isentrope.system.files import fresh_folder, publish_folder
from isentrope.system.processes import barrier, rank
from isentrope.training.divergence import require_finite_state
from isentrope.training.run_files import WRITING, RunFiles
from isentrope.training.saved_state import saving


class WholeCheckpoints:
    """A base class of trainers that save into the folder of a run.

    Attributes:
        files: Files of the run.
        keep: `keep_last` and `keep_every` of the checkpoints.
        verb: What resumes the run.
    """

    files: RunFiles
    keep: tuple[int | None, int | None] = (None, None)
    verb = "train"
    state: Any
    model: Any
    optimizer: Any

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: a run folder is described by its config.yaml."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.files.checkpoints / WRITING)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        target, writing = self.files.checkpoint(step), Path(self._get_output_dir(trial))
        partial = writing / f"checkpoint-{step}"
        require_finite_state(step, self.model, self.optimizer, self.files.latest())
        with saving(step, writing, self.files, self.verb):
            if rank() == 0:
                fresh_folder(writing)
            barrier()
            super()._save_checkpoint(model, trial)  # pyright: ignore
            barrier()
            if rank() == 0:
                self._complete(partial)
                publish_folder(partial, target)
        if rank() == 0:
            shutil.rmtree(writing, ignore_errors=True)
            self.files.prune(*self.keep)
        barrier()

    def _complete(self, partial: Path) -> None:
        """Add the files of a checkpoint that transformers does not write."""
        raise NotImplementedError
