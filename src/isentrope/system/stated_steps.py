"""What a folder is, by its name and by its content: one under another's name is refused.

    checkpoint     step_N, checkpoint-N      trainer_state.json, contract.json, isentrope_state.json
    next_update    in the checkpoint         update.json: step N + 1, and the checkpoint's manifest
    results        <verb>_<name>             results.json
    evaluation     <name>                    metrics.json

This is the only module that compares the two. A name without a step says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isentrope.system.checkpoint_names import step_of_folder
from isentrope.system.errors import FileError
from isentrope.system.files import MANIFEST, sha256_of_file
from isentrope.system.manifest import verifying
from isentrope.system.reading import read_json

STATED_IN = {
    "trainer_state.json": "global_step",
    "contract.json": "step",
    "isentrope_state.json": "step",
}
"""Files of a checkpoint and their keys that state its step."""
CHECKPOINT = "checkpoint_manifest_sha256"
"""Key of update.json: SHA-256 of the manifest of the checkpoint that the step was taken from."""
CURE = "Restore the checkpoint, or choose another."


def checkpoint_step(folder: str | Path) -> int | None:
    """The training step of a checkpoint, on which its name and its files must agree.

    Args:
        folder: The checkpoint, or a link to it.

    Returns:
        The step; None where neither name nor files say it.

    Raises:
        FileError: Naming two steps.
    """
    folder = Path(folder)
    names = (folder.name, folder.resolve().name)
    stated = [(f"its name, {x}", step) for x in names if (step := step_of_folder(x)) is not None]
    for file, key in STATED_IN.items():
        content = read_json(folder / file, CURE, finite=False) if (folder / file).is_file() else {}
        if (step := content.get(key)) is not None:
            stated.append((f"{file} ({key})", step))
    for where, step in stated:
        if type(step) is not int or step != stated[0][1]:
            raise FileError(
                folder,
                f"{folder} is of step {stated[0][1]} by {stated[0][0]}, and of step {step!r} by "
                f"{where}: it was renamed, or has a file of another checkpoint. Restore it.",
            )
    return stated[0][1] if stated else None


def require_own_states(checkpoint: Path, taken: float, scheduled: int | None) -> None:
    """Refuse states of an optimizer or a schedule that are of another step than their checkpoint.

    An optimizer that began anew in a resumed run of another trainer has taken fewer steps, and so
    has its schedule; under float16 steps with overflowing gradients are left out.

    Args:
        checkpoint: Its folder; nothing is compared without trainer_state.json.
        taken: Steps that the optimizer counts.
        scheduled: Steps that the learning rate's schedule counts; None if it is not known.

    Raises:
        FileError: Naming both numbers.
    """
    here = checkpoint_step(checkpoint) if (checkpoint / "trainer_state.json").is_file() else None
    if here is None:
        return
    skips, ours = (checkpoint / "scaler.pt").is_file(), (checkpoint / "contract.json").is_file()
    for what, steps in (("optimizer", taken), ("schedule (scheduler.pt)", scheduled)):
        fewer_is_wrong = not skips and (ours or (what == "optimizer" and scheduled == here))
        if steps is not None and (steps > here or (steps < here and fewer_is_wrong)):
            raise FileError(
                checkpoint,
                f"{checkpoint} is of step {here}, and its {what} has counted {steps:g} steps: the "
                "state is of another checkpoint. Restore it.",
            )


def require_own_update(folder: Path, update: Mapping[str, Any]) -> None:
    """Refuse the record of a step from another checkpoint than the one that it lies in.

    Args:
        folder: `next_update` of a checkpoint.
        update: Content of its update.json.

    Raises:
        FileError: If its step is not the one after the checkpoint's, or was taken from another.
    """
    checkpoint = folder.parent
    here, step = checkpoint_step(checkpoint), update.get("step")
    recorded, manifest = update.get(CHECKPOINT), checkpoint / MANIFEST
    other = None
    if here is not None and step is not None and step != here + 1:
        other = f"records step {step}, and the step from that checkpoint is {here + 1}"
    elif verifying() and recorded and manifest.is_file() and recorded != sha256_of_file(manifest):
        other = "was recorded at a checkpoint of this step with other files"
    if other is not None:
        raise FileError(
            folder,
            f"{folder} {other}: it is of another run or checkpoint. Restore the folder, or remove "
            "it.",
        )


def require_own_name(folder: Path, stated: str) -> None:
    """Refuse results that lie under another name than they state.

    Args:
        folder: The folder of the results.
        stated: The name that the results give to it.

    Raises:
        FileError: Naming both.
    """
    if folder.name != stated:
        raise FileError(
            folder, f"{folder} holds {stated} according to its content: give it that name back."
        )
