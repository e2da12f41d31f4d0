"""verl's FSDP checkpoints: one file of DTensors per process.

    model_world_size_<n>_rank_<i>.pt    {name: DTensor}
    optim_world_size_<n>_rank_<i>.pt    {"state": {number: {...: DTensor}}, "param_groups": [...]}
    huggingface/                        config.json and the tokenizer
    fsdp_config.json                    {"FSDP_version": 2, "world_size": n}

Every process has the same keys, and of each tensor its own part along one dimension. Under FSDP 1
the optimizer holds flat vectors instead, one per wrapped module.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.checkpoint.convert.gathered import (
    Gathered,
    State,
    described_model,
    of_parameters,
)
from isentrope.system.file_contents import read_torch
from isentrope.system.reading import read_json

_FILE = re.compile(r"model_world_size_(\d+)_rank_\d+\.pt")
_LAYER = re.compile(r".*?\.\d+\.")


def read_verl(folder: Path) -> Gathered | None:
    """Weights and optimizer of verl's shards.

    Args:
        folder: With model_world_size_* files, such as global_step_20/actor.

    Returns:
        Both, no optimizer where none was saved; None of any other folder.

    Raises:
        FileNotFoundError: If the file of a process is missing.
        ValueError: If shards do not fit, or FSDP 1 wrapped other modules than the layers.
    """
    sizes = [int(m[1]) for p in folder.iterdir() if (m := _FILE.fullmatch(p.name))]
    if not sizes:
        return None
    size = min(sizes)
    models = _read_files(folder, "model", size)
    weights = join(models)
    described = folder / "huggingface"
    config = described if (described / "config.json").is_file() else None
    optimizer = None
    if any(folder.glob("optim_world_size_*")):
        states = _read_files(folder, "optim", size)
        if (groups := len(states[0]["param_groups"])) != 1:
            raise ValueError(
                f"{folder} has {groups} param groups, whose numbers do not say which parameters "
                "they hold; verl makes one."
            )
        names = list(weights)
        if config is not None and not _select_adapter(
            names
        ):  # a tied weight has two names in a file
            once = {name for name, _ in described_model(config).named_parameters()}
            names = [name for name in names if name in once]
        version = folder / "fsdp_config.json"
        flat = version.is_file() and read_json(version).get("FSDP_version") == 1
        if flat:
            optimizer = _name_flat_vectors(states, models, names)
        else:
            optimizer = _name_parameters(join(states), names)
    return Gathered("verl", weights, optimizer, config)


def _select_adapter(names: list[str]) -> list[str]:
    return [name for name in names if "lora_" in name]


def _read_files(folder: Path, kind: str, size: int) -> list[Any]:
    files = [folder / f"{kind}_world_size_{size}_rank_{i}.pt" for i in range(size)]
    if missing := [file for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{missing[0]} is missing: {size} processes wrote one file each.")
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel("ERROR")  # it warns of each mesh that is read without its processes
    try:
        return [read_torch(file) for file in files]
    finally:
        logger.setLevel(level)


def _name_parameters(optimizer: State, names: list[str]) -> dict[str, Any]:
    """The optimizer by name; of an adapter without the base, which verl's optimizer counts too."""
    # a frozen base has no state, and with save_lora_only its weights are not saved
    state = optimizer["state"]
    (group,) = optimizer["param_groups"]
    trained = sorted(state)
    adapter = _select_adapter(names)
    if trained and len(trained) == len(adapter):
        name_of = dict(zip(trained, adapter, strict=True))
    elif sorted(group["params"]) != list(range(len(names))):
        raise ValueError(
            f"The optimizer counts {len(group['params'])} parameters and the model has "
            f"{len(names)}: they are of different checkpoints, or part of the model is frozen and "
            "left out."
        )
    else:  # of an adapter, other modules were trained too
        counted = trained if trained and adapter else range(len(names))
        name_of = {n: names[n] for n in counted}
    return {
        "state": {name_of[n]: of_parameter for n, of_parameter in state.items()},
        "param_groups": [{**group, "params": list(name_of.values())}],
    }


def _name_flat_vectors(
    states: Sequence[Any], models: Sequence[State], names: list[str]
) -> dict[str, Any]:
    """The optimizer by name under FSDP 1: a flat vector per layer, and one of all the rest."""
    # of an adapter every matrix has a vector of its own
    state = states[0]["state"]
    (group,) = states[0]["param_groups"]
    units = [[name] for name in _select_adapter(names)] or _split_layers(names)
    if len(state) != len(units):
        raise ValueError(
            f"The optimizer has {len(state)} flat vectors and the model {len(units)} layers with "
            "the rest: shards of FSDP 1 are read where wrap_policy and use_orig_params are verl's "
            "defaults. Train with actor_rollout_ref.actor.strategy=fsdp2 instead."
        )
    ranks = _ranks_of_replica(models[0][names[0]])
    by_name: dict[str, Any] = {}
    for number, unit in zip(sorted(state), units, strict=True):
        shapes = {name: models[0][name].shape for name in unit}
        by_name |= of_parameters([states[rank]["state"][number] for rank in ranks], shapes)
    return {"state": by_name, "param_groups": [{**group, "params": list(by_name)}]}


def _split_layers(names: list[str]) -> list[list[str]]:
    """The parameters outside of numbered layers, and then those of each layer."""
    units: dict[str, list[str]] = {"": []}
    for name in names:
        layer = _LAYER.match(name)
        units.setdefault(layer[0] if layer else "", []).append(name)
    return list(units.values())


def join(parts: Sequence[Any]) -> Any:
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
        return {key: join([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [join(list(items)) for items in zip(*parts, strict=True)]
    if hasattr(first, "placements"):
        return _join_tensor(parts)
    return first


def _join_tensor(parts: Sequence[Any]) -> Tensor:
    """A DTensor from the parts of all processes."""
    first = parts[0]
    cuts = [placement for placement in first.placements if not placement.is_replicate()]
    if len(cuts) > 1 or any(not placement.is_shard() for placement in cuts):
        raise ValueError(
            f"A tensor is placed as {first.placements}: one that is cut along one dimension of the "
            "mesh is supported, and replicas of it."
        )
    local = [parts[rank].to_local() for rank in _ranks_of_replica(first)]
    joined = torch.cat(local, dim=cuts[0].dim) if cuts else local[0]
    shape = first.shape
    if joined.shape != shape:
        raise ValueError(
            f"The parts of a tensor of shape {tuple(shape)} join to {tuple(joined.shape)}."
        )
    return joined


def _ranks_of_replica(tensor: Any) -> list[int]:
    """The processes that hold one replica of a DTensor, in the order of their parts."""
    ranks = tensor.device_mesh.mesh
    for k in reversed(range(ranks.dim())):
        ranks = ranks.select(k, 0) if tensor.placements[k].is_replicate() else ranks
    return ranks.flatten().tolist()
