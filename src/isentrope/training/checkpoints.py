"""Checkpoints of a run: complete folders `training_state/step_N` or none, their states, and back.

training_state/step_N/
  isentrope_state.json       step, and state_dict() of every part, by name
  step_control.safetensors   tensors of the step control, if there is one
  entropy_probe.safetensors  the gradient that the probe keeps, if it does

A checkpoint's manifest says which files it was written with (`system.manifest`). Where it has none,
`training.resumable` asks for the parts.
"""

import json
import math
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import TrainerCallback

from isentrope.checkpoint.files import STATE
from isentrope.system.failures import ENDINGS, advice, os_error_number, words_of
from isentrope.system.file_contents import read_tensors
from isentrope.system.files import fresh_folder, publish_folder
from isentrope.system.processes import barrier, rank
from isentrope.system.reading import read_json, reading, reason
from isentrope.training.divergence import require_finite_state
from isentrope.training.run_files import WRITING, RunFiles

_FAILED_SAVE = (OSError, RuntimeError, SafetensorError)
_SECTIONS = {
    "control": ("control.",),
    "step_control": ("control.",),
    "entropy_probe": ("entropy_probe.",),
    "alarm": ("alarm.", "entropy_probe."),
    "noise_scale": ("noise_scale.", "training.prompts_per_step", "training.group_size"),
}
"""Sections that the state of a part depends on."""

_LATER_PARTS = {"alarm"}
"""Parts whose state older checkpoints lack; they start without observations."""


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
        target = self.files.checkpoint(step)
        writing = Path(self._get_output_dir(trial))
        partial = writing / f"checkpoint-{step}"
        require_finite_state(step, self.model, self.optimizer, self.files)
        try:
            if rank() == 0:
                fresh_folder(writing)
            barrier()
            with self._recent_history():
                super()._save_checkpoint(model, trial)  # pyright: ignore
            barrier()
            if rank() == 0:
                self._complete(partial)
                publish_folder(partial, target)
        except ENDINGS:
            raise
        except BaseException as error:  # libraries raise what they like where they cannot write
            shutil.rmtree(writing, ignore_errors=True)
            number = os_error_number(error)
            if number is None and not isinstance(error, _FAILED_SAVE):
                raise  # a fault of ours, which a sentence on the disk would hide
            latest = self.files.latest()
            saved = (
                f"the last good checkpoint is {latest}" if latest else "no checkpoint was saved yet"
            )
            cause = reason(error) if number is None else words_of(number)
            raise OSError(
                f"Step {step} could not be saved in {target} ({cause}): {saved}. First "
                f"{advice(number)}, then continue with `isentrope {self.verb} --resume "
                f"{self.files.folder}`."
            ) from error
        if rank() == 0:
            shutil.rmtree(writing, ignore_errors=True)
            self.files.prune(*self.keep)
        barrier()

    @contextmanager
    def _recent_history(self) -> Iterator[None]:
        """Leave what the checkpoint before has of `log_history` out of the state that is written.

        transformers never reads it; the whole of it in each checkpoint grows as steps squared.
        """
        history = self.state.log_history
        last_saved = max(self.files.steps(), default=-1)
        self.state.log_history = [
            line for line in history if line.get("step", math.inf) > last_saved
        ]
        try:
            yield
        finally:
            self.state.log_history = history

    def _complete(self, partial: Path) -> None:
        """Add the files of a checkpoint that transformers does not write."""
        raise NotImplementedError


class SaveStart(TrainerCallback):
    """Saves a checkpoint before the first step."""

    def __init__(self, trainer: WholeCheckpoints) -> None:
        """Set what is saved.

        Args:
            trainer: Whose model and states are saved.
        """
        self._trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Save a run that begins."""
        if state.global_step == 0 and not self._trainer.files.checkpoint(0).exists():
            self._trainer._save_checkpoint(self._trainer.model, None)


class StopAt(TrainerCallback):
    """Stops training after a step, with a checkpoint; the schedule is not cut."""

    def __init__(self, step: int) -> None:
        """Set the step.

        Args:
            step: From 1.
        """
        self._step = step

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Save and stop."""
        if state.global_step >= self._step:
            control.should_save = control.should_training_stop = True


def write_state(folder: Path, parts: Mapping[str, Any], step: int) -> None:
    """Write the step, and state_dict() and tensors() of all parts, by name."""
    state = {"step": step} | {name: part.state_dict() for name, part in parts.items()}
    for name, part in parts.items():
        if tensors := getattr(part, "tensors", dict)():
            save_file(tensors, folder / f"{name}.safetensors")
    (folder / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")


def restore_state(
    checkpoint: Path,
    parts: Mapping[str, Any],
    changed: Collection[str] | None = None,
    device: Any = "cpu",
) -> None:
    """Restore the state of all parts from a checkpoint.

    Args:
        checkpoint: The folder.
        parts: Objects with load_state_dict(), by name.
        changed: Settings that another run which begins there changes: its parts may be others, and
            those with other settings begin anew. None for the same run.
        device: Of the model, where their tensors go.

    Raises:
        ValueError: If the checkpoint was saved with other parts; those of `_LATER_PARTS` may be
            missing in it.
    """
    state = read_json(checkpoint / STATE, finite=False)
    names = set(parts)
    state.pop("step", None)  # compared with the checkpoint's before
    if changed is not None:
        begin_anew = {
            name
            for name, sections in _SECTIONS.items()
            if any(key.startswith(sections) for key in changed)
        }
        state = {name: x for name, x in state.items() if name in names - begin_anew}
    elif not set(state) <= names <= set(state) | _LATER_PARTS:
        raise ValueError(
            f"{checkpoint} holds the state of {sorted(state)}, the run has {sorted(names)}: "
            "entropy_probe.enabled, alarm.enabled, noise_scale.enabled and control must be as "
            "when it was saved."
        )
    for name in set(state) & names:
        part = parts[name]
        file = checkpoint / f"{name}.safetensors"
        with reading(checkpoint / STATE):
            part.load_state_dict(state[name])
            if hasattr(part, "load_tensors"):
                tensors = read_tensors(file) if file.is_file() else {}
                part.load_tensors({n: x.to(device) for n, x in tensors.items()})
            restored = part.state_dict()
            for key, saved in state[name].items():
                if key not in restored or json.dumps(saved) != json.dumps(restored[key]):
                    raise ValueError(f"{name}.{key} is not as it was written")
