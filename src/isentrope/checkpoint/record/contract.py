"""The measurement contract: the settings of a checkpoint that are needed to replay its step.

training_state/step_N/
  contract.json            settings, trainable set, optimizer, base weights' hash, versions
  parameter_names.json     the optimizer's parameters in its order, one list per param group
  next_update/             written one step later: the step from θ_N to θ_N+1 (`next_update`)

The class `Contract` has every key of contract.json and the values that it can have. A key that is
not here is of a newer version, and is refused, as a value is that no run has. What a contract says
twice must be the same (`stated_twice`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from torch import nn

from isentrope._version import __version__
from isentrope.checkpoint.files import CONTRACT, RESTORE_CHECKPOINT, CheckpointFolder
from isentrope.checkpoint.record.stated_twice import contradiction, stated_beside, stated_within
from isentrope.nouns.choices import AnyObjective
from isentrope.nouns.vectors import tensor_bytes
from isentrope.system.errors import FileError
from isentrope.system.files import sha256
from isentrope.system.manifest import verify
from isentrope.system.number_types import Count
from isentrope.system.reading import require_types
from isentrope.update.parameter_names import SIDECAR
from isentrope.update.saved_state import require_plausible


def _require_plausible_group(group: dict[str, Any]) -> dict[str, Any]:
    require_plausible({**group, "params": []}, "param group")
    return group


_SHA256 = r"(?!0+$)[0-9a-f]{64}"
Digest = Annotated[str, Field(pattern=rf"^{_SHA256}\Z")]
DigestOrState = Annotated[str, Field(pattern=rf"^(none|unknown.*|{_SHA256})\Z")]
"""A digest; "none" of what is not there; "unknown" of what is not on this machine."""
Group = Annotated[dict[str, Any], AfterValidator(_require_plausible_group)]
Word = Annotated[str, Field(pattern=r"^\w+$")]
NonEmptyText = Annotated[str, Field(min_length=1)]

_NOT_ALWAYS = {
    "plain_objective",
    "advantages",
    "control",
    "eos_token_ids",
    "config",
    "made_from",
    "parent",
}
"""Keys that not every version has written."""


class Contract(BaseModel):
    """The settings of a contract; those of older versions, and those of other tools, have fewer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, regex_engine="python-re")

    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)] = 1
    objective: AnyObjective = "recorded"
    plain_objective: AnyObjective | None = None
    advantages: Literal["dr_grpo", "grpo", "rloo"] | None = None
    control: dict[str, Any] | None = None
    loss_type: Word = "dr_grpo"
    normaliser: Literal["constant", "longest"] = "constant"
    max_new_tokens: Count = 1
    eos_token_ids: list[NonNegativeInt] = []
    temperature: PositiveFloat = 1.0
    max_grad_norm: NonNegativeFloat | None = None
    prompts_per_step: Count = 1
    group_size: Count = 1
    micro_batch: Count = 1
    gradient_accumulation_steps: Count = 1
    world_size: Count = 1
    seed: NonNegativeInt = 0
    sampler: Literal["transformers", "vllm"] = "transformers"
    replayable: bool = True
    base_model: NonEmptyText = "unknown"
    frozen_sha256: Digest = ""
    trainable: dict[NonEmptyText, list[Count]] = {}
    dataset: NonEmptyText = "unknown"
    dataset_sha256: Digest = ""
    environment: dict[NonEmptyText, NonEmptyText | PositiveInt] = {}
    config: dict[str, dict[str, Any]] = {}
    made_from: dict[NonEmptyText, DigestOrState] = {}
    parent: dict[str, Any] = {}
    step: NonNegativeInt = 0
    learning_rate_next: NonNegativeFloat = 0.0
    optimizer: Word = "unknown"
    param_groups: Annotated[list[Group], Field(min_length=1)] = []

    @model_validator(mode="after")
    def _require_agreement(self) -> Contract:
        keys = self.model_fields_set
        complete = "schema_" in keys
        missing = [key for key in type(self).model_fields if key not in keys | _NOT_ALWAYS]
        if complete and missing:
            raise ValueError(f"it has no {missing[0]!r}")
        product = self.micro_batch * self.gradient_accumulation_steps * self.world_size
        if complete and product != self.prompts_per_step:
            raise ValueError(
                f"prompts_per_step is {self.prompts_per_step}, and its parts make {product}"
            )
        stated = self.model_dump(by_alias=True, exclude_unset=True)
        if words := contradiction(stated_within(stated)):
            raise ValueError(words)
        return self


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
        FileError: If it has a key or a value that no run writes, or states a fact twice that does
            not agree.
    """
    verify(folder)
    contract = CheckpointFolder(folder).contract
    if contract is None:
        raise FileNotFoundError(f"{folder} has no {CONTRACT}: `isentrope train` did not write it.")
    require_types(folder / CONTRACT, contract, Contract, RESTORE_CHECKPOINT)
    if "schema" in contract and (words := contradiction(stated_beside(contract, folder))):
        raise FileError(f"{folder / CONTRACT}: {words}. {RESTORE_CHECKPOINT}")
    return contract


def environment() -> dict[str, Any]:
    """Versions of the libraries that can change a number, and the device."""
    from importlib.metadata import version

    packages = ("torch", "transformers", "trl", "peft", "accelerate")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    versions = {"isentrope": __version__} | {name: version(name) for name in packages}
    return versions | {"device": device, "threads": threads}
