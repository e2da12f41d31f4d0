"""Checks that a checkpoint is complete, so that a run resumes from it exactly.

Its manifest says which files it was written with (`system.manifest`). The parts below are asked for
where it has none: transformers would go on without a state that is not there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path

from isentrope.system.checkpoint_folder import CONTRACT, CheckpointFolder
from isentrope.system.checkpoint_names import step_name
from isentrope.system.reading import reading
from isentrope.trainers.convert.distributed import METADATA, require_inert

STATE = "isentrope_state.json"
CONTROL_STATE = "step_control.safetensors"
_REMEDY = (
    "Restore the file that the run saved there, or remove the folder to resume from the checkpoint "
    "before it."
)


def require_resumable(checkpoint: Path, *, sharded: bool = False, scaled: bool = False) -> None:
    """Refuse to resume from a checkpoint of which a part is missing or empty.

    Args:
        checkpoint: Folder `step_N`.
        sharded: Whether the optimizer was saved in shards (FSDP, DeepSpeed).
        scaled: Whether gradients were scaled, as float16 requires.

    Raises:
        ValueError: If a file is missing, empty, of another step, or would run code; the message
            names the file.
    """
    for pattern in _parts(checkpoint, sharded, scaled):
        if not any(path.stat().st_size for path in checkpoint.glob(pattern)):
            raise ValueError(
                f"{checkpoint} has no {pattern}, so the run cannot be resumed from it exactly. "
                f"{_REMEDY}"
            )
    for metadata in checkpoint.rglob(METADATA):
        require_inert(metadata.parent)
    saved = CheckpointFolder(checkpoint).step
    if saved is None or checkpoint.name != step_name(saved):
        raise ValueError(f"{checkpoint} is not called step_N by its step, {saved}. {_REMEDY}")


def _parts(checkpoint: Path, sharded: bool, scaled: bool) -> Iterator[str]:
    yield from (CONTRACT, STATE, "trainer_state.json", "scheduler.pt")
    if not sharded:  # the loaders of FSDP and DeepSpeed require theirs
        adapter = (checkpoint / "adapter_config.json").is_file()
        yield from (
            "adapter_model.safetensors" if adapter else "model*.safetensors",
            "optimizer.pt",
        )
    if scaled:
        yield "scaler.pt"
    with reading(checkpoint / CONTRACT, _REMEDY):
        contract = CheckpointFolder(checkpoint).contract or {}
        n = operator.index(contract.get("world_size", 1))
    yield from ["rng_state.pth"] if n == 1 else [f"rng_state_{i}.pth" for i in range(n)]
