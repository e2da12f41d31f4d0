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


def environment() -> dict[str, Any]:
    """Versions of the libraries that can change a number, and the device."""
    from importlib.metadata import version

    packages = ("isentrope", "torch", "transformers", "trl", "peft", "accelerate")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    return {name: version(name) for name in packages} | {"device": device, "threads": threads}
