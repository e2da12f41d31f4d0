"""The state of a run besides model and optimizer: its parts in each checkpoint, and back.

training_state/step_N/
  isentrope_state.json       step, and state_dict() of every part, by name
  step_control.safetensors   tensors of the step control, if there is one
  entropy_probe.safetensors  the gradient that the probe keeps, if it does
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from isentrope.control.isentropic import IsentropicStep
from isentrope.system.reading import read_json, read_tensors, reading
from isentrope.training.resumable import CONTROL_STATE, STATE
from isentrope.training.run_files import RunFiles

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


@contextmanager
def saving(step: int, writing: Path, files: RunFiles, verb: str) -> Iterator[None]:
    """Remove what was written of a checkpoint if it cannot be completed, and say how to go on.

    Args:
        step: The step.
        writing: Where the checkpoint is written.
        files: Files of the run.
        verb: What resumes the run.

    Raises:
        OSError: If the block fails.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(writing, ignore_errors=True)
        last = files.latest()
        good = f"the last good checkpoint is {last}" if last else "no checkpoint was saved yet"
        raise OSError(
            f"Step {step} could not be saved ({error}): {good}. Free disk space, then continue "
            f"with `isentrope {verb} --resume {files.folder}`."
        ) from error


def write_state(
    folder: Path, parts: Mapping[str, Any], control: IsentropicStep | None, step: int
) -> None:
    """Write the step, and state_dict() of all parts and of the step control, by name."""
    state = {"step": step} | {name: part.state_dict() for name, part in parts.items()}
    if control is not None:
        state["step_control"] = control.state_dict()
        save_file(control.tensors(), folder / CONTROL_STATE)
    for name, part in parts.items():
        if tensors := getattr(part, "tensors", dict)():
            save_file(tensors, folder / f"{name}.safetensors")
    (folder / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")


def restore_state(
    checkpoint: Path,
    parts: Mapping[str, Any],
    control: IsentropicStep | None,
    changed: Collection[str] | None = None,
) -> None:
    """Restore the state of all parts from a checkpoint.

    Args:
        checkpoint: The folder.
        parts: Objects with load_state_dict(), by name.
        control: The step control.
        changed: Settings that another run which begins there changes: its parts may be others, and
            those with other settings begin anew. None for the same run.

    Raises:
        ValueError: If the checkpoint was saved with other parts; those of `_LATER_PARTS` may be
            missing in it.
    """
    state = read_json(checkpoint / STATE, finite=False)
    state.pop("step", None)  # compared with the checkpoint's before
    names = set(parts) | ({"step_control"} if control else set())
    if changed is not None:
        begin_anew = {n for n, s in _SECTIONS.items() if any(k.startswith(s) for k in changed)}
        state = {name: x for name, x in state.items() if name in names - begin_anew}
    elif not set(state) <= names <= set(state) | _LATER_PARTS:
        raise ValueError(
            f"{checkpoint} holds the state of {sorted(state)}, the run has {sorted(names)}: "
            "entropy_probe.enabled, alarm.enabled, noise_scale.enabled and control must be as "
            "when it was saved."
        )
    if control is not None and "step_control" in state:
        tensors = read_tensors(checkpoint / CONTROL_STATE)
        with reading(checkpoint / STATE):
            control.load_state_dict(state["step_control"], tensors)
    for name in set(state) & set(parts):
        with reading(checkpoint / STATE):
            parts[name].load_state_dict(state[name])
            _require_same_state(name, state[name], parts[name].state_dict())
        if (file := checkpoint / f"{name}.safetensors").is_file():
            parts[name].load_tensors(read_tensors(file))


def _require_same_state(name: str, saved: Mapping[str, Any], restored: Mapping[str, Any]) -> None:
    """Refuse a state of which a part does not arrive as it was written."""
    for key in saved:
        if key not in restored or json.dumps(saved[key]) != json.dumps(restored[key]):
            raise ValueError(f"{name}.{key} is not as it was written")
