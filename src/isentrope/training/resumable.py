"""Checks that a checkpoint is complete, so that a run resumes from it exactly."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path

from isentrope.system.checkpoint_folder import CONTRACT, CheckpointFolder
from isentrope.system.checkpoint_names import step_name
from isentrope.system.reading import read_json, reading
from isentrope.trainers.convert.distributed import METADATA, require_inert

STATE = "isentrope_state.json"
CONTROL_STATE = "step_control.safetensors"
_ALWAYS = (CONTRACT, STATE, "trainer_state.json", "scheduler.pt")
_REMEDY = (
    "Restore the file that the run saved there, or remove the folder to resume from the checkpoint "
    "before it."
)
_SHARDED = ("optimizer.bin", "optimizer*", "global_step*", "rank*")


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
    missing = next(_missing(checkpoint, sharded, scaled), None)
    if missing is not None:
        raise ValueError(
            f"{checkpoint} has no {missing}, so the run cannot be resumed from it exactly. "
            f"{_REMEDY}"
        )
    for metadata in checkpoint.rglob(METADATA):
        require_inert(metadata.parent)
    saved = CheckpointFolder(checkpoint).step
    if saved is None or checkpoint.name != step_name(saved):
        raise ValueError(f"{checkpoint} is not called step_N by its step, {saved}. {_REMEDY}")


def _missing(checkpoint: Path, sharded: bool, scaled: bool) -> Iterator[str]:
    def present(pattern: str) -> bool:
        paths = checkpoint.glob(pattern)
        return any((p.is_dir() and any(p.iterdir())) or _has_content(p) for p in paths)

    if not any(checkpoint.iterdir()):
        yield "file in it"
    kind, weights = "adapter_config.json", "adapter_model.safetensors"
    if not present(kind):
        kind, weights = "config.json", "model*.safetensors"
    if not present(kind):
        yield "adapter_config.json or config.json"
    if not sharded and not present(weights):
        yield weights
    if not any(present(name) for name in (_SHARDED if sharded else ("optimizer.pt",))):
        yield "optimizer.pt"
    controlled = (CONTROL_STATE,) if _controlled(checkpoint / STATE) else ()
    for name in (*_ALWAYS, *(("scaler.pt",) if scaled else ()), *controlled):
        if not present(name):
            yield name
    processes = _processes(checkpoint)
    numbered = [f"rng_state_{i}.pth" for i in range(processes)]
    for name in numbered if processes > 1 else ["rng_state.pth"]:
        if not present(name):
            yield name


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _controlled(state: Path) -> bool:
    """Whether the saved state contains that of a step control."""
    return _has_content(state) and "step_control" in read_json(state, _REMEDY, finite=False)


def _processes(checkpoint: Path) -> int:
    contract = CheckpointFolder(checkpoint).contract or {}
    with reading(checkpoint / CONTRACT, _REMEDY):
        return operator.index(contract.get("world_size", 1))
