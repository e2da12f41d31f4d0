"""The types that a checkpoint's trained parameters have on disk, from the headers of its files."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from isentrope.models.adapter import ADAPTER, plain_tensor
from isentrope.system.reading import read_tensor_headers

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
    adapter = Path(folder) / ADAPTER
    files = [adapter] if adapter.is_file() else sorted(Path(folder).glob("*.safetensors"))
    stored = {key: kind for file in files for key, kind in _types_in(file).items()}
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
    headers = [read_tensor_headers(file) for file in Path(source).glob("*.safetensors")]
    kinds = {kind for header in headers for kind, _ in header.values()}
    return torch.bfloat16 if kinds == {"BF16"} else torch.float32


def _on_disk(name: str) -> str:
    """A parameter's name without PEFT's prefix and the parts that its files leave out."""
    parts = [p for p in plain_tensor(name).split(".") if p not in ("default", "modules_to_save")]
    return ".".join(parts)


def _types_in(file: Path) -> dict[str, torch.dtype]:
    headers = read_tensor_headers(file)
    return {plain_tensor(key): _TYPES[kind] for key, (kind, _) in headers.items() if kind in _TYPES}
