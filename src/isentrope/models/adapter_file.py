"""The file of an adapter, compared with its settings before PEFT reads either."""

from pathlib import Path

import torch

from isentrope.checkpoint.files import ADAPTER, ADAPTER_CONFIG, CheckpointFolder
from isentrope.models.base_model import NOT_GATHERED
from isentrope.system.errors import FileError

WEIGHT_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Types of weights, by their names in a header of safetensors."""
_SHORT = ("F8_E4M3", "F8_E5M2")


def require_own_tensors(folder: Path) -> None:
    """Refuse tensors that are not weights of the adapter which the settings beside them describe.

    Args:
        folder: The adapter's folder.

    Raises:
        FileError: Naming the first that is of a type without weights, empty, or of another rank.
    """
    file = folder / ADAPTER
    settings = CheckpointFolder(folder).adapter
    rank = settings.get("r") if settings.get("peft_type") == "LORA" else None
    if settings.get("rank_pattern") or settings.get("target_parameters"):
        rank = None  # others than one for all
    for key, (kind, shape) in CheckpointFolder(folder).header(ADAPTER).items():
        if kind not in WEIGHT_TYPES and kind not in _SHORT:
            raise FileError(
                f"{file}: {key!r} is of type {kind}, which holds no weights: an adapter that keeps "
                f"indices beside them (peft_type {settings.get('peft_type')}) cannot be measured. "
                "If it should hold weights alone, restore the checkpoint."
            )
        if 0 in shape:
            raise FileError(f"{file}: {key!r} is {NOT_GATHERED}.")
        if isinstance(rank, int) and key.endswith("lora_A.weight") and shape[0] != rank:
            raise FileError(
                f"{folder / ADAPTER_CONFIG} says rank {rank}, and {key!r} of {ADAPTER} has shape "
                f"{list(shape)}, which is of rank {shape[0]}: restore the file that is not of this "
                "training."
            )
