"""Checkpoint folders of other frameworks, recognised by their files, with a remedy for each.

They are not read here: each sentence names the framework, what it wrote, and what to run.
"""

from __future__ import annotations

import re
from pathlib import Path

_CONVERT = "run isentrope convert {} --out OUT"
_OF_BASE = "--model BASE, the folder of the model that was trained"


def foreign_layout(folder: Path) -> str | None:
    """What another framework wrote into a folder.

    Args:
        folder: A folder.

    Returns:
        A sentence with the framework's name and what to do, or None.
    """
    here = (recognise(folder) for recognise in _RECOGNISERS if folder.is_dir())
    return next((sentence for sentence in here if sentence), None)


def foreign_file(file: Path) -> str | None:
    """What another framework writes under this file name.

    Args:
        file: An optimizer's file.

    Returns:
        A sentence with the framework's name and what to do, or None.
    """
    for pattern, name in _SHARDS.items():
        if re.fullmatch(pattern, file.name):
            return f"It is a part of {name}: {_CONVERT.format('FOLDER')} on its folder."
    return None


_SHARDS = {
    r"optim_world_size_\d+_rank_\d+\.pt": "verl's FSDP state",
    r".*_optim_states\.pt": "DeepSpeed's state",
    r"optimizer_\d+_rank\d+\.bin": "accelerate's FSDP state",
}
"""Names of files that hold one process's part."""


def _has(folder: Path, *patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _verl(folder: Path) -> str | None:
    for here in (folder, folder / "actor", folder.parent):
        if _has(here, "model_world_size_*_rank_*.pt", "optim_world_size_*_rank_*.pt"):
            return f"{here} is a checkpoint of verl (FSDP shards): {_CONVERT.format(here)}."
    return None


def _openrlhf(folder: Path) -> str | None:
    for here in (folder, folder.parent):
        if (here / "_actor").is_dir():
            return (
                f"{here} is a checkpoint folder of OpenRLHF (DeepSpeed in _actor): "
                f"{_CONVERT.format(here / '_actor')} --model HF, where HF is the model that "
                "--save_hf_ckpt writes (a folder global_step*_hf)."
            )
    return None


def _sharded(folder: Path) -> str | None:
    """By a framework whose shards lie in the folder, and of which the base is given."""
    for name, patterns in _SHARDED.items():
        if _has(folder, *patterns):
            return f"{folder} is {name}: {_CONVERT.format(folder)} {_OF_BASE}."
    for here in (folder, *(path for path in _has(folder, "*") if path.is_dir())):
        if (here / ".metadata").is_file():
            name = "a checkpoint of torch.distributed.checkpoint"
            return f"{here} is {name}: {_CONVERT.format(here)} {_OF_BASE}."
    return None


_SHARDED = {
    "a checkpoint of DeepSpeed": (
        *("global_step*/*_optim_states.pt", "*_optim_states.pt", "*_model_states.pt"),
        "zero_to_fp32.py",
    ),
    "an FSDP checkpoint of accelerate or transformers": (
        "pytorch_model_fsdp*",
        "optimizer_[0-9]*",
    ),
}
"""Files that a framework writes, by what they are."""


def _accelerate(folder: Path) -> str | None:
    complete = (folder / "config.json", folder / "adapter_config.json")
    states = _has(folder, "random_states_*.pkl", "optimizer.bin")
    if any(file.is_file() for file in complete) or not states:
        return None
    return (
        f"{folder} is a checkpoint of accelerate's save_state: put the model's config.json (or, "
        "for an adapter, adapter_config.json and adapter_model.safetensors) beside its weights, "
        f"and set checkpoint.optimizer_path={folder / 'optimizer.bin'}, which is read."
    )


def _adapters(folder: Path) -> str | None:
    adapters = [path.parent for path in _has(folder, "*/adapter_config.json")]
    if not adapters or (folder / "adapter_config.json").is_file():
        return None
    state = folder / "optimizer.pt"
    beside = f" and checkpoint.optimizer_path={state}" if state.is_file() else ""
    return (
        f"{folder} holds adapters in {', '.join(f'{path.name}/' for path in adapters)}: set "
        f"checkpoint.checkpoint_path to the one that was trained, such as {adapters[0]}{beside}."
    )


_RECOGNISERS = (_verl, _openrlhf, _sharded, _accelerate, _adapters)
"""In this order: verl and OpenRLHF wrap the layouts of FSDP and DeepSpeed."""
