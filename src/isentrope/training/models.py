"""The model that is trained: loaded or made, with a fresh adapter, an old one, or all its weights.

Dropout in an adapter is refused: the update would be random, and could not be replayed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from isentrope.policy.checkpoint import adapter_mismatch, require_checkpoint
from isentrope.training.toy import build_toy_policy

TOY = "toy"
"""The path that stands for the toy policy with random weights."""


def load_trainable(
    path: str,
    *,
    lora_rank: int,
    lora_alpha: float,
    lora_target_modules: str | list[str] = "all-linear",
    dtype: str = "float32",
    seed: int = 0,
) -> tuple[Any, Any]:
    """Load a model for training.

    Args:
        path: Folder of a model or an adapter, a name on the model hub, or "toy".
        lora_rank: Rank of the adapter, fresh or found; 0 to train every weight.
        lora_alpha: Scale of the adapter's output, times the rank.
        lora_target_modules: Layers that get a fresh adapter.
        dtype: Type of the base model's weights.
        seed: Fixes weights that are random; the global random state is left alone.

    Returns:
        The model in evaluation mode, on the CPU, and its tokenizer.

    Raises:
        ValueError: If an adapter was found and another rank or full training asked for.
    """
    folder = Path(path).expanduser()
    if path == TOY:
        toy = build_toy_policy(seed)
        model, tokenizer = toy.model, toy.tokenizer
    elif (folder / "adapter_config.json").exists():
        return _with_found_adapter(folder, lora_rank, dtype), load_tokenizer(folder)
    else:
        source = str(require_checkpoint(folder).resolve()) if folder.exists() else path
        model, tokenizer = _causal_lm(source, dtype), load_tokenizer(source)
    if lora_rank == 0:
        return model.requires_grad_(True).eval(), tokenizer
    config = LoraConfig(
        r=lora_rank,
        lora_alpha=lora_alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=0.0,
        target_modules=lora_target_modules,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config).eval(), tokenizer


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a model.

    Args:
        source: Its folder, or its name on the hub.

    Returns:
        The tokenizer, padding on the left where it pads prompts.
    """
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source, padding_side="left")


def _causal_lm(source: str, dtype: str) -> nn.Module:
    from transformers import AutoModelForCausalLM

    kind = getattr(torch, dtype)
    return AutoModelForCausalLM.from_pretrained(source, dtype=kind, use_safetensors=True)


def _with_found_adapter(folder: Path, lora_rank: int, dtype: str) -> nn.Module:
    settings = json.loads((folder / "adapter_config.json").read_text())
    if settings["r"] != lora_rank:
        raise ValueError(
            f"{folder} holds an adapter of rank {settings['r']}, and model.lora_rank is "
            f"{lora_rank}: set it to {settings['r']} to go on training that adapter, or give the "
            "folder of the base model for a fresh one."
        )
    if settings.get("lora_dropout"):
        raise ValueError(
            f"The adapter in {folder} has dropout {settings['lora_dropout']}: its update would be "
            "random. Set lora_dropout to 0 in its adapter_config.json."
        )
    base = _causal_lm(settings["base_model_name_or_path"], dtype)
    model = PeftModel.from_pretrained(base, folder, is_trainable=True)  # pyright: ignore
    if missing := adapter_mismatch(model, folder):
        raise ValueError(f"The adapter in {folder} did not load: {missing}")
    return model.eval()
