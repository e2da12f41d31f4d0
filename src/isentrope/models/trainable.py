"""The parameters that training changed: patterns of their names, and their types on disk.

Patterns are those of fnmatch, on the names of `model.named_parameters()`: * is any text, ? one
character, [ab] one of two. "model.layers.*" is every layer, "*norm*" every norm.

The types that a checkpoint's trained parameters have on disk, from the headers of its files.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

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


def train_only(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make θ the parameters whose names fit a pattern, and freeze the rest.

    Args:
        model: A model whose parameters that could have been trained require a gradient: all of a
            full model, those of the adapter of a PEFT model.
        patterns: At least one, each of which has to fit a parameter.

    Raises:
        ValueError: Naming the first pattern that fits nothing.
    """
    open_names = [name for name, p in model.named_parameters() if p.requires_grad]
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in open_names):
            continue
        raise ValueError(
            f"The pattern {pattern!r} of checkpoint.trainable fits no parameter (under an adapter, "
            f"none of its own): the parameters have names such as {open_names[0]!r} and "
            f"{open_names[-1]!r} (* stands for any text)."
        )
    for name, parameter in model.named_parameters():
        keep = parameter.requires_grad and any(fnmatchcase(name, p) for p in patterns)
        parameter.requires_grad_(keep)
