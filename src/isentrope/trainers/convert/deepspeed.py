"""DeepSpeed's ZeRO checkpoints, stages 1 to 3: flat vectors, cut into one part per process.

    *mp_rank_00_model_states.pt      param_shapes: per group {name: shape}, in the vector's order
    *_optim_states.pt                one per process: float32 weights and the optimizer's vectors

Stages 1 and 2 concatenate a group's parameters, with `parameter_alignment` each padded, and cut the
whole into equal parts. Stage 3 cuts each parameter into equal parts, the last one padded, and
concatenates the parts of a process.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.system.reading import read_text, read_torch_as_data
from isentrope.trainers.convert.gathered import (
    Gathered,
    Shapes,
    Split,
    State,
    is_vector,
    of_parameters,
    split_flat,
)


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
    folder = _step(folder)
    saved = [
        read_torch_as_data(f)["optimizer_state_dict"] for f in _ordered(folder, "optim_states")
    ]
    if not saved:
        return None
    models = [read_torch_as_data(f) for f in _ordered(folder, "model_states")]
    if not models:
        raise FileNotFoundError(f"{folder} has no *_model_states.pt: names and shapes are in it.")
    count = saved[0]["partition_count"]
    count = max(count) if isinstance(count, (list, tuple)) else count
    if count != len(saved):
        raise FileNotFoundError(
            f"{folder} has {len(saved)} *_optim_states.pt of {count}: copy those of all processes."
        )
    third = "fp32_flat_groups" in saved[0]
    states = [s["optimizer_state_dict" if third else "base_optimizer_state"] for s in saved]
    groups = _groups(states[0])
    weights, vectors = (_third_stage if third else _first_stages)(saved, models, states)
    moments: dict[str, dict[str, Any]] = {}
    for shapes, parts, of_parts, split in vectors:
        weights |= split(parts, shapes)
        moments |= of_parameters(of_parts, shapes, split)
    for name, of in models[0].get("shared_params", {}).items():
        weights[name] = weights[of]
    optimizer = {
        "state": moments,
        "param_groups": [
            {**group, "params": list(shapes)}
            for group, shapes in zip(groups, models[0]["param_shapes"], strict=True)
        ],
    }
    config = models[0].get("ds_config")
    in_config = config.get("gradient_clipping") if isinstance(config, Mapping) else None
    clip = saved[0].get("clip_grad", in_config)  # 0 for any norm
    training = {"max_grad_norm": clip or None} if isinstance(clip, (int, float)) else {}
    return Gathered("DeepSpeed ZeRO", weights, optimizer, training=training)


Vector = tuple[Shapes, Sequence[Tensor], Sequence[State], Split]
"""Shapes by name, weights and optimizer states of each process, and how they are cut."""
Content = tuple[dict[str, Tensor], list[Vector]]
"""Weights that no optimizer holds, and flat vectors."""


def _first_stages(saved: Sequence[Any], models: Sequence[Any], states: Sequence[Any]) -> Content:
    """Stages 1 and 2: one vector per param group, cut across processes."""
    paddings = saved[0].get("param_alignment_paddings")
    vectors: list[Vector] = []
    for k, shapes in enumerate(models[0]["param_shapes"]):
        split = partial(split_flat, behind=paddings[k] if paddings else None)
        parts = [s["single_partition_of_fp32_groups"][k] for s in saved]
        vectors.append((shapes, parts, [_states(state, [k])[0] for state in states], split))
    return {n: x for n, x in models[0]["module"].items() if isinstance(x, Tensor)}, vectors


def _third_stage(saved: Sequence[Any], models: Sequence[Any], states: Sequence[Any]) -> Content:
    """Stage 3: all parameters in one row per process, which DeepSpeed keeps in several vectors."""
    frozen: dict[str, Tensor] = {}
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        parts = [model["frozen_param_fragments"][name] for model in models]
        frozen |= _split_third(parts, {name: shape})
    shapes = {name: shape for group in models[0]["param_shapes"] for name, shape in group.items()}
    rows = [
        {
            key: torch.cat([v[key] for v in vectors]) if is_vector(first) else first
            for key, first in vectors[0].items()
        }
        for state in states
        for vectors in [_states(state, range(len(state["param_groups"])))]
    ]
    whole = [torch.cat([*s["fp32_flat_groups"]]) for s in saved]
    return frozen, [(shapes, whole, rows, _split_third)]


def _step(folder: Path) -> Path:
    """The folder of the step that `latest` names; the folder itself where there is none."""
    latest = folder / "latest"
    if not latest.exists():
        return folder
    name = read_text(latest).strip()
    if name != Path(name).name:
        raise ValueError(f"{latest} should hold the name of a folder beside it: restore the file.")
    return folder / name


def _ordered(folder: Path, kind: str) -> list[Path]:
    """Files of a kind, in the order of their processes."""
    files = folder.glob(f"*_{kind}.pt")
    return sorted(files, key=lambda f: [int(n) for n in re.findall(r"\d+", f.name)])


def _groups(state: Any) -> list[dict[str, Any]]:
    """Settings of the param groups, without what only DeepSpeed knows."""
    if isinstance(state, list):  # elastic checkpoints keep states alone
        raise ValueError(
            "The checkpoint was written with elastic_checkpoint, which keeps no settings of the "
            "optimizer: save it with zero_optimization.elastic_checkpoint=false."
        )
    return [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]


def _states(state: Any, groups: Iterable[int]) -> list[State]:
    """What the optimizer remembers of each flat vector of some groups."""
    numbers = [n for k in groups for n in state["param_groups"][k]["params"]]
    return [state["state"].get(n, {}) for n in numbers]


def _split_third(parts: Sequence[Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Stage 3: each parameter from one equal part per process."""
    sizes = [math.ceil(math.prod(shape) / len(parts)) for shape in shapes.values()]
    if any(part.numel() < sum(sizes) for part in parts):
        raise ValueError("A flat vector is shorter than the parameters of its group.")
    pieces = [part.flatten()[: sum(sizes)].split(sizes) for part in parts]
    joined = [torch.cat(of) for of in zip(*pieces, strict=True)]
    return {
        name: whole[: math.prod(shape)].view(tuple(shape)).clone()
        for (name, shape), whole in zip(shapes.items(), joined, strict=True)
    }
