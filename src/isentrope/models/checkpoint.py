"""Checkpoint folders of Hugging Face and TRL: an adapter or a full model, safetensors only.

Pickled weights are refused: they can run code. Optimizer states are read by `update`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isentrope.models.adapter import (
    adapter_mismatch,
    base_type,
    fit_vocabulary,
    require_tunable,
    train_only,
)
from isentrope.models.base_model import adapter_base, causal_lm, loading
from isentrope.models.layouts import foreign_layout
from isentrope.system import manifest
from isentrope.system.checkpoint_folder import ADAPTER, ADAPTER_CONFIG, CheckpointFolder
from isentrope.system.errors import FileError
from isentrope.system.manifest import verification
from isentrope.system.reading import reading


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is loaded.

    Attributes:
        base_model: Base of the adapter, where the one its config names is not to be used.
        allow_hub: Whether a base that the adapter's config names may come from the model hub.
        device_map: Device for the model, for example "cuda"; the CPU by default.
        quantization: "4bit" for a frozen quantised base (needs bitsandbytes).
        trainable_patterns: Names (with * and ?) of the parameters that training moved; None for
            the whole adapter, or all weights.
        mapped: Whether to keep a base under LoRA, or a whole model, in the type of its files, from
            which the CPU then maps it; else it is converted to float32.
        verify: Whether to compare the checkpoint and its base with their manifests, where they have
            them.
        tokenizer: The tokenizer, where that of the folder or of its base is not to be used.
    """

    base_model: str | Path | None = None
    allow_hub: bool = False
    device_map: str | None = None
    quantization: str | None = None
    trainable_patterns: Sequence[str] | None = None
    mapped: bool = False
    verify: bool = True
    tokenizer: Any = None


def load_checkpoint(path: str | Path, options: LoadOptions) -> tuple[Any, Any]:
    """Load the model and the tokenizer of a checkpoint.

    Args:
        path: Folder with an adapter (`adapter_config.json`) or a full model (`config.json`).
        options: How it is loaded.

    Returns:
        The model, its adapter or all its weights trainable, in evaluation mode; and its tokenizer,
        None where there is none.
    """
    with verification(options.verify):
        folder = require_checkpoint(path)
        model = load_model(folder, options)
        if options.trainable_patterns is not None:
            train_only(model, options.trainable_patterns)
        return model, options.tokenizer or _load_tokenizer(folder, model)


def require_checkpoint(path: str | Path) -> Path:
    """Refuse a folder that holds no model in safetensors, or one that was changed.

    Args:
        path: A folder.

    Returns:
        The same path.

    Raises:
        FileNotFoundError: If the folder or a weights file is missing.
        FileError: If a file differs from the manifest, or the folder has another step's name.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no checkpoint folder {folder}: {_BY_HAND}.")
    whole = any((folder / name).exists() for name in ("adapter_config.json", "config.json"))
    weights = any(folder.glob("*.safetensors"))
    if not (whole and weights) and (foreign := foreign_layout(folder)):
        raise FileNotFoundError(foreign)
    if not whole:
        raise FileNotFoundError(
            f"{folder} is not a checkpoint: it has neither adapter_config.json nor config.json. "
            f"From a plain loop, {_BY_HAND}."
        )
    if not weights:
        raise FileNotFoundError(
            f"{folder} holds no *.safetensors weights, or pickled weights only, which are refused "
            f"because loading them can run code: {_BY_HAND}."
        )
    manifest.verify(folder)
    _ = CheckpointFolder(folder).step  # refused where name and files differ
    return folder


_BY_HAND = (
    "write the model by model.save_pretrained(FOLDER) and the tokenizer by "
    "tokenizer.save_pretrained(FOLDER), and torch.save(optimizer.state_dict(), "
    "'FOLDER/optimizer.pt')"
)


def load_model(folder: Path, options: LoadOptions) -> nn.Module:
    """Load the model of a checkpoint folder, in float32 unless it is mapped.

    Args:
        folder: A folder that `require_checkpoint` accepts.
        options: How it is loaded.

    Returns:
        A causal LM, or a PEFT model with a trainable adapter, in evaluation mode.

    Raises:
        FileNotFoundError: If the base model is a path that is not there.
        ValueError: If `quantization` is unknown, or given without an adapter, or the adapter's
            tensors do not all arrive in the model.
    """
    from transformers import BitsAndBytesConfig

    settings = CheckpointFolder(folder).adapter
    if options.quantization is not None and not settings:
        raise ValueError("Only a frozen base under an adapter can be quantised.")
    if options.quantization not in (None, "4bit"):
        raise ValueError(f"quantization={options.quantization!r}; choose 4bit or none.")
    source: str | Path = folder
    if settings:
        named = settings.get("base_model_name_or_path")
        source = adapter_base(folder, named, options.base_model, allow_hub=options.allow_hub)
    model = causal_lm(
        source,
        dtype=base_type(source)
        if options.mapped and _is_mappable(CheckpointFolder(folder))
        else torch.float32,
        device_map=options.device_map,
        quantization_config=BitsAndBytesConfig(load_in_4bit=True) if options.quantization else None,
    )
    return (with_adapter(model, folder) if settings else model).eval()


def _is_mappable(folder: CheckpointFolder) -> bool:
    """Whether a folder is a whole model, or an adapter that keeps all weights of its base."""
    if not folder.is_adapter:
        return True
    begun = folder.adapter.get("init_lora_weights", True)
    plain = isinstance(begun, bool) or begun in ("gaussian", "orthogonal")
    here = plain and (folder.path / ADAPTER).exists()
    return here and all("lora_" in name for name in folder.header(ADAPTER))


def with_adapter(model: Any, folder: Path) -> Any:
    """A base model with the adapter of a folder, trainable.

    Args:
        model: The base model, which is changed.
        folder: The adapter's folder.

    Returns:
        The PEFT model.

    Raises:
        FileError: If the adapter cannot be read, or does not fit the model.
        ValueError: If it is one of virtual tokens, or its tensors do not all arrive in the model.
    """
    from peft import PeftConfig, PeftModel

    require_tunable(folder, CheckpointFolder(folder).adapter)
    fit_vocabulary(model, folder)
    with reading(folder / ADAPTER_CONFIG):
        PeftConfig.from_pretrained(str(folder))
    with reading(folder):
        adapted = PeftModel.from_pretrained(
            model, folder, is_trainable=True, torch_device=str(model.device)
        )
    if missing := adapter_mismatch(adapted, folder):
        raise ValueError(f"The adapter in {folder} did not load: {missing}")
    return adapted


def load_tokenizer(source: str | Path, **options: Any) -> Any:
    """The tokenizer in a folder, as it was saved.

    AutoTokenizer rebuilds the tokenizer of some architectures (qwen2 for one) by its own rules,
    regardless of tokenizer.json. Where the folder declares tokenizer.json to be complete, it is
    loaded unchanged.

    Args:
        source: A folder, or a name on the hub.
        **options: Passed on, for example `padding_side`.

    Returns:
        The tokenizer.

    Raises:
        FileError: If it cannot be read, or its code would have to be run.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    local = Path(source).is_dir()
    if local:
        manifest.verify(source)
    with reading(Path(source) / "tokenizer_config.json") if local else nullcontext():
        saved_as = get_tokenizer_config(source).get("tokenizer_class")
    plain = saved_as in ("TokenizersBackend", "PreTrainedTokenizerFast")
    kind = PreTrainedTokenizerFast if plain else AutoTokenizer
    with loading("tokenizer", source):
        tokenizer = kind.from_pretrained(source, trust_remote_code=False, **options)
        if not isinstance(tokenizer.model_max_length, (int, float)):
            raise FileError(
                f"The tokenizer in {source} has a model_max_length that is not a number."
            )
        return tokenizer


def _load_tokenizer(folder: Path, model: nn.Module) -> Any:
    base: Any = model
    for source in (folder, Path(base.config.name_or_path or folder)):
        if (source / "tokenizer_config.json").exists():
            return load_tokenizer(source)
    return None
