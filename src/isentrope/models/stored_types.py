"""The types that a checkpoint's trained parameters have on disk, from the headers of its files."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from isentrope.models.adapter import plain_tensor
from isentrope.system.checkpoint_folder import ADAPTER, CheckpointFolder

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def stored_types(folder: str | Path, names: Iterable[str]) -> dict[str, torch.dtype]:
    """The type on disk of each trained parameter.

    Args:
        folder: Checkpoint folder.
        names: Names of the trained parameters, as the model has them.

    Returns:
        A type for each name. A parameter that is stored under another name (fused experts, a tied
        head) has the type of the checkpoint where that is one; else it is omitted.
    """
    headers = CheckpointFolder(Path(folder)).headers
    adapter = Path(folder) / ADAPTER
    chosen = [headers[adapter]] if adapter in headers else headers.values()
    stored = {
        plain_tensor(key): _TYPES[kind]
        for header in chosen
        for key, (kind, _) in header.items()
        if kind in _TYPES
    }
    only = set(stored.values())
    types: dict[str, torch.dtype] = {}
    for name in names:
        kind = stored.get(_on_disk(name)) or (next(iter(only)) if len(only) == 1 else None)
        if kind is not None:
            types[name] = kind
    return types


def base_type(source: str | Path) -> torch.dtype:
    """The type in which a base can be mapped from its files.

    Args:
        source: Folder of the model, or its name on the hub, whose files are not looked at.

    Returns:
        bfloat16 where all tensors have that type, else float32; float16 overflows in a pass.
    """
    headers = CheckpointFolder(Path(source)).headers.values()
    kinds = {kind for header in headers for kind, _ in header.values()}
    return torch.bfloat16 if kinds == {"BF16"} else torch.float32


def _on_disk(name: str) -> str:
    """A parameter's name without PEFT's prefix and the parts that its files leave out."""
    parts = [p for p in plain_tensor(name).split(".") if p not in ("default", "modules_to_save")]
    return ".".join(parts)
