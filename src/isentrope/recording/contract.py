"""The measurement contract: the settings of a checkpoint that are needed to replay its step.

training_state/step_N/
  contract.json            settings, trainable set, optimizer, base weights' hash, versions
  parameter_names.json     the optimizer's parameters in its order, one list per param group
  next_update/             written one step later: the step from θ_N to θ_N+1 (`next_update`)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isentrope.nouns.vectors import tensor_bytes
from isentrope.recording.contract_types import Contract
from isentrope.system.checkpoint_folder import CONTRACT, CURE, CheckpointFolder
from isentrope.system.files import sha256
from isentrope.system.manifest import verify
from isentrope.system.reading import require_types
from isentrope.update.parameter_names import SIDECAR

_MUST_AGREE = {
    "trainable": "the trainable parameters",
    "frozen_sha256": "the frozen weights of the base model",
    "world_size": "the number of processes",
    "prompts_per_step": "training.prompts_per_step",
    "group_size": "training.group_size",
    "micro_batch": "training.micro_batch",
    "max_new_tokens": "sampling.max_new_tokens",
    "eos_token_ids": "the tokens that end a response",
    "temperature": "sampling.temperature",
    "max_grad_norm": "training.max_grad_norm",
    "control": "control",
    "objective": "the objective",
    "loss_type": "trainer.loss_type",
    "seed": "training.seed",
    "dataset_sha256": "the training prompts",
}
"""Settings that must be equal to resume a run, in words."""
_MAY_BE_MISSING = ("eos_token_ids",)
"""Settings that older checkpoints do not hold and that cannot be inferred."""
_OLD_DEFAULTS = {"control": None}
"""Settings that older checkpoints do not hold, and their values there."""


def frozen_hash(model: nn.Module) -> str:
    """SHA-256 over names and bytes of every weight that is not trained."""
    return sha256(
        name.encode() + tensor_bytes(parameter)
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    )


def trainable_shapes(model: nn.Module) -> dict[str, list[int]]:
    """The trainable set: shape by parameter name, in the model's order."""
    return {n: list(p.shape) for n, p in model.named_parameters() if p.requires_grad}


def optimizer_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Names of the optimizer's parameters in its order, one list per param group."""
    names = {id(p): n for n, p in model.named_parameters()}
    return [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def hyper_parameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each param group, without its parameters."""
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def write_contract(folder: Path, contract: Mapping[str, Any], names: list[list[str]]) -> None:
    """Write the contract into a new checkpoint, and names from `optimizer_names`."""
    (folder / CONTRACT).write_text(json.dumps(contract, indent=2) + "\n", encoding="utf-8")
    write_names(folder, names)


def write_names(folder: Path, names: list[list[str]]) -> None:
    """Write the names of an optimizer's parameters (`optimizer_names`) beside its state."""
    (folder / SIDECAR).write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")


def read_contract(folder: Path) -> dict[str, Any]:
    """Read the contract of a checkpoint.

    Returns:
        Its content.

    Raises:
        FileNotFoundError: If the checkpoint has none.
    """
    verify(folder)
    contract = CheckpointFolder(folder).contract
    if contract is None:
        raise FileNotFoundError(f"{folder} has no {CONTRACT}: `isentrope train` did not write it.")
    require_types(folder / CONTRACT, contract, Contract, CURE)
    return contract


_STATES_NEED = ("trainable", "frozen_sha256", "world_size", "eos_token_ids", "dataset_sha256")
"""Those that the states in a checkpoint depend on, which a branch takes over."""


def require_same_run(
    saved: Mapping[str, Any], now: Mapping[str, Any], *, branched: bool = False
) -> None:
    """Refuse to resume a run from a checkpoint of another run.

    Args:
        saved: The checkpoint's contract.
        now: The contract of the resumed run.
        branched: Whether it is another run that begins there, whose settings may differ.

    Raises:
        ValueError: Naming the first thing that differs.
    """
    for key, words in _MUST_AGREE.items():
        if (branched and key not in _STATES_NEED) or (key in _MAY_BE_MISSING and key not in saved):
            continue
        if key == "objective" and now[key] == "recorded":
            continue  # these names now cover more: the loss's settings are compared separately
        if key not in saved and key not in _OLD_DEFAULTS:
            raise ValueError(
                f"The run cannot be resumed: the contract of its checkpoint has no {key!r}, so "
                f"{words} cannot be compared. Restore {CONTRACT}, or start a new run."
            )
        before = saved.get(key, _OLD_DEFAULTS.get(key))
        if before != now[key]:
            differ = _other_shapes if key == "trainable" else _other_value
            raise ValueError(
                f"The run cannot be resumed: {words} {differ(before, now[key])}. Resume "
                "with the settings of its start, or start a new run."
            )


def _other_value(saved: Any, now: Any) -> str:
    return f"was {saved!r} and is {now!r}"


def _other_shapes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    other = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
    return (
        f"differ in {len(other)} of {len(saved)}, the first is {other[0]!r} "
        f"(shape {saved.get(other[0], 'none')} then, {now.get(other[0], 'none')} now)"
    )


def environment() -> dict[str, Any]:
    """Versions of the libraries that can change a number, and the device."""
    from importlib.metadata import version

    packages = ("isentrope", "torch", "transformers", "trl", "peft", "accelerate")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    return {name: version(name) for name in packages} | {"device": device, "threads": threads}
