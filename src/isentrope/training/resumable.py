"""Whether a run can be resumed from a checkpoint: its files, of which none is loaded.

transformers would go on without a state that is not there.
"""

import operator
from collections.abc import Iterator
from pathlib import Path

from isentrope.checkpoint.files import (
    CONTRACT,
    DCP_METADATA,
    STATE,
    CheckpointFolder,
    step_name,
)
from isentrope.system.reading import reading

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
    for pattern in _list_needed_files(checkpoint, sharded, scaled):
        if not any(path.stat().st_size for path in checkpoint.glob(pattern)):
            raise ValueError(
                f"{checkpoint} has no {pattern}, so the run cannot be resumed from it exactly. "
                f"{_REMEDY}"
            )
    for metadata in checkpoint.rglob(DCP_METADATA):
        from isentrope.checkpoint.convert.distributed import require_inert

        require_inert(metadata.parent)
    saved = CheckpointFolder(checkpoint).step
    if saved is None or checkpoint.name != step_name(saved):
        raise ValueError(f"{checkpoint} is not called step_N by its step, {saved}. {_REMEDY}")


def _list_needed_files(checkpoint: Path, sharded: bool, scaled: bool) -> Iterator[str]:
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
        processes = operator.index(contract.get("world_size", 1))
    if processes == 1:
        yield "rng_state.pth"
    else:
        yield from (f"rng_state_{rank}.pth" for rank in range(processes))
