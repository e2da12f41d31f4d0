"""Adapters and checkpoint folders in the layout of Hugging Face and TRL, complete or absent.

base_model/                 config.json, model.safetensors, tokenizer files
training_state/step_N/      adapter_config.json, adapter_model.safetensors, tokenizer files,
                            optimizer.pt (with parameter names), trainer_state.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from isentrope.policy.language_model import Policy
from isentrope.system.files import whole_folder
from isentrope.training.models import fresh_adapter


def save_base_model(policy: Policy, folder: str | Path) -> Path:
    """Save a policy without adapter; adapters added to it afterwards refer to this folder.

    Returns:
        The folder, absolute.

    Raises:
        ValueError: If the policy has an adapter.
    """
    if isinstance(policy.model, PeftModel):
        raise ValueError("The policy has an adapter already: save its base before with_lora.")
    target = Path(folder).resolve()
    model = cast(PreTrainedModel, policy.model)
    with whole_folder(target) as partial:
        model.save_pretrained(partial)
        if policy.tokenizer is not None:
            policy.tokenizer.save_pretrained(partial)
    model.name_or_path = str(target)
    model.config.name_or_path = str(target)
    return target


def require_new_run(policy: Policy, folder: Path) -> Path:
    """Refuse a run whose checkpoints could not be saved, before it starts.

    Returns:
        The folder of checkpoints, `training_state`.

    Raises:
        ValueError: If the policy has no adapter, or its base is not on disk.
        FileExistsError: If the folder holds checkpoints.
    """
    if not isinstance(policy.model, PeftModel):
        raise ValueError("Only adapters are trained here: add one to the policy with with_lora.")
    base = policy.model.peft_config["default"].base_model_name_or_path
    if not base or not Path(base).is_dir():
        raise ValueError(
            f"The adapter's base model is not on disk (base_model_name_or_path is {base!r}), so "
            "its checkpoints could not be loaded: call save_base_model before with_lora."
        )
    checkpoints = folder / "training_state"
    if any(checkpoints.glob("step_*")):
        raise FileExistsError(f"{checkpoints} holds checkpoints of a run: choose a new folder.")
    return checkpoints


def save_checkpoint(
    policy: Policy, optimizer: torch.optim.Optimizer, folder: Path, state: Mapping[str, Any]
) -> Path:
    """Save the current adapter, optimizer state and settings."""
    with whole_folder(folder) as partial:
        cast(PeftModel, policy.model).save_pretrained(str(partial), save_embedding_layers=False)
        if policy.tokenizer is not None:
            policy.tokenizer.save_pretrained(partial)
        torch.save(optimizer.state_dict(), partial / "optimizer.pt")
        (partial / "trainer_state.json").write_text(json.dumps(state, indent=2) + "\n")
    return folder


def with_lora(policy: Policy, rank: int = 16, *, seed: int, scale: int = 2) -> Policy:
    """Add a new LoRA adapter to every linear layer; the base is frozen.

    Args:
        policy: A policy without adapter; its model is changed in place.
        rank: Rank r.
        seed: Seed of the adapter's random matrices.
        scale: alpha / r, the factor of the adapter's output.

    Returns:
        The policy over the adapter's parameters, without dropout.
    """
    model = fresh_adapter(policy.model, rank, scale * rank, seed=seed)
    return Policy(
        model, policy.tokenizer, temperature=policy.temperature, precision=policy.precision
    )
