"""The record of the step that was taken from a checkpoint, from which it is replayed.

training_state/step_N/next_update/    written when step N + 1 is done: the step from θ_N to θ_N+1
  rollouts.parquet       ids, rewards, advantages, sampler log-probabilities, token weights,
                         entropy weights where the loss has an entropy term
  update.json            learning rate, gradient norm, clip norm, loss of that step
  control.safetensors    λu, where a step control added it: θ_N+1 = θ_N + η (v + λu)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field
from safetensors.torch import save_file

from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.system.files import MANIFEST, whole_folder
from isentrope.system.manifest import file_digest, verify
from isentrope.system.reading import read_json, read_tensors, require_types
from isentrope.system.stated_steps import CHECKPOINT, require_own_update

NEXT_UPDATE = "next_update"
CONTROL = "control.safetensors"
_CURE = "Restore the folder, or remove it: the checkpoint itself does not need it."


class _UpdateTypes(BaseModel):
    """Types of the numbers of a recorded step."""

    step: Annotated[int, Field(ge=0)] = 0
    loss: float | None = None
    learning_rate: Annotated[float, Field(ge=0)] | None = None
    gradient_norm: Annotated[float, Field(ge=0)] | None = None
    max_grad_norm: Annotated[float, Field(ge=0)] | None = None
    replayable: bool = True
    replay_error: float = 0.0
    controlled: bool = False


def write_next_update(
    checkpoint: Path,
    rollouts: Rollouts,
    update: Mapping[str, Any],
    control: Vector | None = None,
) -> None:
    """Write the step taken from a checkpoint beside it; an existing record is kept.

    Args:
        checkpoint: Folder of step N.
        rollouts: The batch of the step from θ_N to θ_N+1, with token weights.
        update: The other quantities of that step.
        control: The part that a step control added to v, or None.
    """
    target = checkpoint / NEXT_UPDATE
    if target.exists():
        return
    with whole_folder(target) as partial:
        rollouts.save(partial / "rollouts.parquet")
        if control is not None:
            save_file({n: x.contiguous().cpu() for n, x in control.items()}, partial / CONTROL)
            update = {**update, "controlled": True}
        if (manifest := checkpoint / MANIFEST).is_file():
            update = {**update, CHECKPOINT: file_digest(manifest)}
        (partial / "update.json").write_text(json.dumps(update, indent=2) + "\n")


def read_control(checkpoint: str | Path) -> Vector | None:
    """The part that a step control added to the step taken from a checkpoint.

    Returns:
        λu by parameter name, float64, per unit learning rate; None if nothing was added.

    Raises:
        ValueError: If something was added and its file is missing.
    """
    folder = Path(checkpoint) / NEXT_UPDATE
    verify(folder)
    update = _read_update(folder)
    if not update.get("controlled", False):
        return None
    if not (folder / CONTROL).is_file():
        raise ValueError(
            f"{folder} has no {CONTROL}: the step was corrected by a control, and without it the "
            "step cannot be replayed."
        )
    return read_tensors(folder / CONTROL)


def read_next_update(checkpoint: str | Path) -> tuple[Rollouts, dict[str, Any]]:
    """The record of the step from θ_N to θ_N+1.

    Returns:
        The update batch with its token weights, and the content of update.json.

    Raises:
        FileNotFoundError: If the run ended, or was stopped, before that step was done.
        ValueError: If the step was recorded and its record does not replay it.
    """
    folder = Path(checkpoint) / NEXT_UPDATE
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} does not exist: the run took no step from this checkpoint."
        )
    verify(folder)
    update = _read_update(folder)
    if update.get("replayable") is False:
        raise ValueError(
            f"{folder} does not replay its step: the gradient of its token weights is off by "
            f"{update.get('replay_error', math.nan):.2g} of the one that was used. Train without "
            "router losses, dropout and packing, or measure with an objective by name."
        )
    return Rollouts.load(folder / "rollouts.parquet"), update


def _read_update(folder: Path) -> dict[str, Any]:
    path = folder / "update.json"
    update = read_json(path, _CURE)
    require_types(path, update, _UpdateTypes, _CURE)
    require_own_update(folder, update)
    return update
