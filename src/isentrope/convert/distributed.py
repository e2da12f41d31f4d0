"""torch.distributed.checkpoint (DCP), alone and as accelerate and transformers use it for FSDP.

dcp folder                  .metadata, __0_0.distcp, ...        {"model": ..., "optim": ...}
pytorch_model_fsdp_0/       a dcp folder of weights alone
optimizer_0/                a dcp folder of the optimizer alone, by name
pytorch_model_fsdp.bin, optimizer.bin    the same, gathered by the trainer
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.convert.gathered import Gathered
from isentrope.reading import reading

METADATA = ".metadata"
FSDP_WEIGHTS, FSDP_OPTIMIZER = "pytorch_model_fsdp", "optimizer"


def is_dcp(folder: Path) -> bool:
    """Whether a folder is a checkpoint of torch.distributed.checkpoint."""
    return (folder / METADATA).is_file()


def read_dcp(folder: Path) -> Gathered:
    """Weights and optimizer of a DCP folder.

    Args:
        folder: With .metadata.

    Returns:
        Both, wherever in its content they are.

    Raises:
        ValueError: If it does not hold one model.
    """
    content = _content(folder)
    return Gathered(
        "torch.distributed.checkpoint", _weights(content, folder), _optimizer(content, folder)
    )


def is_fsdp(folder: Path) -> bool:
    """Whether a folder is an FSDP checkpoint of accelerate or transformers."""
    return bool([*folder.glob(f"{FSDP_WEIGHTS}*")])


def read_fsdp(folder: Path) -> Gathered:
    """Weights and optimizer of an FSDP checkpoint of accelerate or transformers.

    Args:
        folder: With pytorch_model_fsdp_0 or pytorch_model_fsdp.bin.

    Returns:
        Both; no optimizer where none was saved.

    Raises:
        ValueError: If it does not hold one model.
    """
    weights = _part(folder, FSDP_WEIGHTS)
    if weights is None:
        raise ValueError(f"{folder} holds no weights of FSDP.")
    optimizer = _part(folder, FSDP_OPTIMIZER)
    found = None if optimizer is None else _optimizer(optimizer, folder)
    return Gathered("FSDP of accelerate or transformers", _weights(weights, folder), found)


def _part(folder: Path, name: str) -> Any:
    """The content of a dcp folder NAME_0 or of the file NAME.bin; None if neither is there."""
    if is_dcp(folder / f"{name}_0"):
        return _content(folder / f"{name}_0")
    file = folder / f"{name}.bin"
    if not file.is_file():
        return None
    with reading(file):
        return torch.load(file, map_location="cpu", weights_only=True)


def _content(folder: Path) -> Any:
    """What was saved, gathered in one process."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.TemporaryDirectory() as place, reading(folder):
        file = Path(place) / "whole.pt"
        dcp_to_torch_save(folder, file)
        return torch.load(file, map_location="cpu", weights_only=True)


def _weights(content: Any, folder: Path) -> Mapping[str, Tensor]:
    found = [part for part in _parts(content) if _is_weights(part)]
    if len(found) != 1:
        raise ValueError(
            f"{folder} holds {len(found)} sets of weights by name, where one model was expected."
        )
    return found[0]


def _optimizer(content: Any, folder: Path) -> Mapping[str, Any] | None:
    found = [part for part in _parts(content) if _is_optimizer(part)]
    if len(found) > 1:
        raise ValueError(f"{folder} holds the states of {len(found)} optimizers, not of one.")
    return found[0] if found else None


def _parts(content: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping from the root on, without those inside weights and optimizer states."""
    if isinstance(content, Mapping):
        yield content
        if not (_is_weights(content) or _is_optimizer(content)):
            for part in content.values():
                yield from _parts(part)


def _is_weights(part: Mapping[str, Any]) -> bool:
    return bool(part) and all(isinstance(value, Tensor) for value in part.values())


def _is_optimizer(part: Mapping[str, Any]) -> bool:
    flat = any(str(key).startswith("state.") for key in part)
    return flat or {"state", "param_groups"} <= part.keys()
