"""DeepSpeed's ZeRO checkpoints, stages 1 to 3: flat vectors, cut into one part per process.

    *mp_rank_00_model_states.pt      param_shapes: per group {name: shape}, in the vector's order
    *_optim_states.pt                one per process: float32 weights and the optimizer's vectors

Stages 1 and 2 concatenate a group's parameters, with `parameter_alignment` each padded, and cut the
whole into equal parts. Stage 3 cuts each parameter into equal parts, the last one padded, and
concatenates the parts of a process.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.checkpoint.convert.gathered import (
    Gathered,
    Shapes,
    State,
    is_vector,
    of_parameters,
    split_flat,
)
from isentrope.system.file_contents import read_torch_as_data
from isentrope.system.reading import read_text


def read_deepspeed(folder: Path) -> Gathered | None:
    """Weights and optimizer of a ZeRO checkpoint.

    Args:
        folder: A checkpoint of DeepSpeed, or a step of it.

    Returns:
        Float32 weights, and the optimizer by name; None of any other folder.

    Raises:
        FileNotFoundError: If the model's file, or that of a process, is missing.
        ValueError: If a vector does not have the length of its parameters.
    """
    folder = _find_step(folder)
    saved = [
        read_torch_as_data(file)["optimizer_state_dict"]
        for file in _sort_files(folder, "optim_states")
    ]
    if not saved:
        return None
    models = [read_torch_as_data(file) for file in _sort_files(folder, "model_states")]
    if not models:
        raise FileNotFoundError(f"{folder} has no *_model_states.pt: names and shapes are in it.")
    count = saved[0]["partition_count"]
    count = max(count) if isinstance(count, (list, tuple)) else count
    if count != len(saved):
        raise FileNotFoundError(
            f"{folder} has {len(saved)} *_optim_states.pt of {count}: copy those of all processes."
        )
    settings = _read_settings(saved[0])
    groups = models[0]["param_shapes"]
    read_stage = _read_third_stage if "fp32_flat_groups" in saved[0] else _read_first_stages
    weights, moments = read_stage(saved, models)
    for name, original in models[0].get("shared_params", {}).items():
        weights[name] = weights[original]
    optimizer = {
        "state": moments,
        "param_groups": [
            {**group, "params": list(shapes)}
            for group, shapes in zip(settings, groups, strict=True)
        ],
    }
    config = models[0].get("ds_config")
    configured_norm = config.get("gradient_clipping") if isinstance(config, Mapping) else None
    max_norm = saved[0].get("clip_grad", configured_norm)  # 0 for any norm
    training = {"max_grad_norm": max_norm or None} if isinstance(max_norm, (int, float)) else {}
    return Gathered("DeepSpeed ZeRO", weights, optimizer, training=training)


_WeightsAndMoments = tuple[dict[str, Tensor], dict[str, dict[str, Any]]]
"""Weights, and what the optimizer remembers of each parameter."""


def _read_first_stages(saved: Sequence[Any], models: Sequence[Any]) -> _WeightsAndMoments:
    """Stages 1 and 2: one vector per param group, cut across processes."""
    paddings = saved[0].get("param_alignment_paddings")
    weights = {n: x for n, x in models[0]["module"].items() if isinstance(x, Tensor)}
    moments: dict[str, dict[str, Any]] = {}
    for k, shapes in enumerate(models[0]["param_shapes"]):
        split = partial(split_flat, behind=paddings[k] if paddings else None)
        weights |= split([s["single_partition_of_fp32_groups"][k] for s in saved], shapes)
        states = [_list_states(s["base_optimizer_state"], k)[0] for s in saved]
        moments |= of_parameters(states, shapes, split)
    return weights, moments


def _read_third_stage(saved: Sequence[Any], models: Sequence[Any]) -> _WeightsAndMoments:
    """Stage 3: all parameters in one row per process, which DeepSpeed keeps in several vectors."""
    weights: dict[str, Tensor] = {}
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        parts = [model["frozen_param_fragments"][name] for model in models]
        weights |= _split_third(parts, {name: shape})
    shapes = {name: shape for group in models[0]["param_shapes"] for name, shape in group.items()}
    rows: list[State] = []
    for state in (s["optimizer_state_dict"] for s in saved):
        vectors = [v for k in range(len(state["param_groups"])) for v in _list_states(state, k)]
        rows.append(
            {
                key: torch.cat([v[key] for v in vectors]) if is_vector(first) else first
                for key, first in vectors[0].items()
            }
        )
    weights |= _split_third([torch.cat([*s["fp32_flat_groups"]]) for s in saved], shapes)
    return weights, of_parameters(rows, shapes, _split_third)


def _find_step(folder: Path) -> Path:
    """The folder of the step that `latest` names; the folder itself where there is none."""
    latest = folder / "latest"
    if not latest.exists():
        return folder
    name = read_text(latest).strip()
    if name != Path(name).name:
        raise ValueError(f"{latest} should hold the name of a folder beside it: restore the file.")
    return folder / name


def _sort_files(folder: Path, kind: str) -> list[Path]:
    """Files of a kind, in the order of their processes."""
    files = folder.glob(f"*_{kind}.pt")
    return sorted(files, key=lambda f: [int(n) for n in re.findall(r"\d+", f.name)])


def _read_settings(saved: Any) -> list[dict[str, Any]]:
    """Settings of the param groups, without what only DeepSpeed knows."""
    state = saved.get("optimizer_state_dict", saved.get("base_optimizer_state"))
    if isinstance(state, list):  # elastic checkpoints keep states alone
        raise ValueError(
            "The checkpoint was written with elastic_checkpoint, which keeps no settings of the "
            "optimizer: save it with zero_optimization.elastic_checkpoint=false."
        )
    return [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]


def _list_states(state: Any, group: int) -> list[State]:
    """What the optimizer remembers of each flat vector of a group."""
    return [state["state"].get(n, {}) for n in state["param_groups"][group]["params"]]


def _split_third(parts: Sequence[Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Stage 3: each parameter from one equal part per process."""
    sizes = [math.ceil(math.prod(shape) / len(parts)) for shape in shapes.values()]
    if any(part.numel() < sum(sizes) for part in parts):
        raise ValueError("A flat vector is shorter than the parameters of its group.")
    pieces = zip(*(part.flatten()[: sum(sizes)].split(sizes) for part in parts), strict=True)
    return {
        name: torch.cat(of_processes)[: math.prod(shape)].view(tuple(shape)).clone()
        for (name, shape), of_processes in zip(shapes.items(), pieces, strict=True)
    }
