"""verl's FSDP2 checkpoints: one file of DTensors per process.

    model_world_size_<n>_rank_<i>.pt    {name: DTensor}
    optim_world_size_<n>_rank_<i>.pt    {"state": {number: {...: DTensor}}, "param_groups": [...]}
    huggingface/                        config.json and the tokenizer
    fsdp_config.json                    {"FSDP_version": 2, "world_size": n}

Every process has the same keys, and of each tensor its own part along one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.convert.gathered import Gathered, by_name
from isentrope.reading import read_json, reading

_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def is_verl(folder: Path) -> bool:
    """Whether a folder holds shards of verl."""
    return any(_FILE.fullmatch(path.name) for path in folder.glob("model_world_size_*"))


def read_verl(folder: Path) -> Gathered:
    """Weights and optimizer of verl's FSDP2 shards.

    Args:
        folder: With model_world_size_* files, such as global_step_20/actor.

    Returns:
        Both; no optimizer where none was saved.

    Raises:
        FileNotFoundError: If the file of a process is missing.
        ValueError: If the shards are of FSDP 1, whose optimizer has no parameters, or do not fit.
    """
    config = folder / "fsdp_config.json"
    if config.is_file() and read_json(config).get("FSDP_version") == 1:
        raise ValueError(
            f"{folder} was written under FSDP 1, whose optimizer holds flat vectors without names: "
            "train with actor_rollout_ref.actor.strategy=fsdp2, whose state is by parameter."
        )
    size = int(_FILE.fullmatch(min(p.name for p in folder.glob("model_world_size_*")))[1])  # type: ignore[index]
    weights = _joined_files(folder, "model", size)
    optimizer = None
    if any(folder.glob("optim_world_size_*")):
        optimizer = _joined_files(folder, "optim", size)
        if (groups := len(optimizer["param_groups"])) != 1:
            raise ValueError(
                f"{folder} has {groups} param groups, whose numbers do not say which parameters "
                "they hold; verl makes one."
            )
        optimizer = by_name(optimizer, list(weights))
    at = folder / "huggingface"
    return Gathered("verl", weights, optimizer, at if (at / "config.json").is_file() else None)


def _joined_files(folder: Path, kind: str, size: int) -> Any:
    files = [folder / f"{kind}_world_size_{size}_rank_{i}.pt" for i in range(size)]
    if missing := [file for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{missing[0]} is missing: {size} processes wrote one file each.")
    return joined([_load(file) for file in files])


def _load(file: Path) -> Any:
    import torch.distributed.tensor  # names the classes that may be read

    with reading(file):
        return torch.load(file, map_location="cpu", weights_only=True)


def joined(parts: Sequence[Any]) -> Any:
    """The contents of all processes as one, with whole tensors.

    Args:
        parts: Content of each process, in their order.

    Returns:
        The content of the first with every DTensor joined.

    Raises:
        ValueError: If the contents differ in structure, or a tensor cannot be joined.
    """
    first = parts[0]
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            raise ValueError("The files of the processes have different keys.")
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [joined(list(items)) for items in zip(*parts, strict=True)]
    if hasattr(first, "placements"):
        return _whole(parts)
    return first


def _whole(parts: Sequence[Any]) -> Tensor:
    """A DTensor from the parts of all processes of a mesh with one dimension."""
    placements, shape = parts[0].placements, parts[0].shape
    if len(placements) != 1:
        raise ValueError(
            f"A tensor is placed on a mesh of {len(placements)} dimensions; one dimension (FSDP "
            "alone) is supported."
        )
    local = [part.to_local() for part in parts]
    (placement,) = placements
    if placement.is_replicate():
        return local[0]
    if not placement.is_shard():
        raise ValueError(f"A tensor is placed as {placement}, which cannot be joined.")
    whole = torch.cat(local, dim=placement.dim)
    if whole.shape != shape:
        raise ValueError(
            f"The parts of a tensor of shape {tuple(shape)} join to {tuple(whole.shape)}."
        )
    return whole
