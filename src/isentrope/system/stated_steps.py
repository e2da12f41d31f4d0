"""What a folder is, by its name and by its content: one under another's name is refused.

    checkpoint     step_N, checkpoint-N      trainer_state.json, contract.json, isentrope_state.json
    next_update    in the checkpoint         update.json: step N + 1, and the checkpoint's manifest
    results        <verb>_<name>             results.json
    evaluation     <name>                    metrics.json

The step of a checkpoint itself is that of `checkpoint_folder`. A name without a step says nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isentrope.system.checkpoint_folder import CONTRACT, CheckpointFolder
from isentrope.system.errors import FileError
from isentrope.system.files import MANIFEST
from isentrope.system.manifest import file_digest, verifying

CHECKPOINT = "checkpoint_manifest_sha256"
"""Key of update.json: SHA-256 of the manifest of the checkpoint that the step was taken from."""


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
    here = (
        CheckpointFolder(checkpoint).step if (checkpoint / "trainer_state.json").is_file() else None
    )
    if here is None:
        return
    skips, ours = (checkpoint / "scaler.pt").is_file(), (checkpoint / CONTRACT).is_file()
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
    here, step = CheckpointFolder(checkpoint).step, update.get("step")
    recorded, manifest = update.get(CHECKPOINT), checkpoint / MANIFEST
    other = None
    if here is not None and step is not None and step != here + 1:
        other = f"records step {step}, and the step from that checkpoint is {here + 1}"
    elif verifying() and recorded and manifest.is_file() and recorded != file_digest(manifest):
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
