"""Checkpoint folders of Hugging Face and TRL: an adapter or a full model, safetensors only.

Pickled weights are refused: they can run code. Optimizer states are read by `update`. Folders of
other trainers are not read: the refusal says how they are converted.

Of a model that was trained in part, patterns choose the parameters: those of fnmatch, on the names
of `model.named_parameters()`, where * is any text, ? one character and [ab] one of two.
"model.layers.*" is every layer, "*norm*" every norm.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.models.adapter import mapped_type, read_adapter, with_adapter
from isentrope.models.base_model import adapter_base, causal_lm, loading, model_config
from isentrope.models.checkpoint_folder import require_checkpoint
from isentrope.system import manifest
from isentrope.system.errors import FileError
from isentrope.system.log import quiet_libraries


def load_checkpoint(
    path: str | Path,
    *,
    base_model: str | Path | None = None,
    allow_hub: bool = False,
    device_map: str | None = None,
    quantization: str | None = None,
    trainable_patterns: Sequence[str] | None = None,
    mapped: bool = False,
    verify: bool = True,
) -> Any:
    """Load the model of a checkpoint.

    Args:
        path: Folder with an adapter (`adapter_config.json`) or a full model (`config.json`).
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

    Returns:
        The model, its adapter or all its weights trainable, in evaluation mode.

    Raises:
        FileNotFoundError: If the checkpoint, or its base model, is not there.
        ValueError: If `quantization` is unknown, or given without an adapter, or the adapter's
            tensors do not all arrive in the model.
    """
    from transformers import BitsAndBytesConfig

    with manifest.verification(verify):
        folder = require_checkpoint(path)
        adapted = CheckpointFolder(folder).is_adapter
        if quantization is not None and (quantization != "4bit" or not adapted):
            raise ValueError(
                f"quantization={quantization!r}: choose none, or 4bit for a frozen base under an "
                "adapter."
            )
        source = adapter_base(folder, base_model, allow_hub=allow_hub) if adapted else folder
        model = causal_lm(
            source,
            dtype=mapped_type(folder, source) if mapped else torch.float32,
            device_map=device_map,
            quantization_config=BitsAndBytesConfig(load_in_4bit=True) if quantization else None,
        )
        if adapted:
            model = with_adapter(model, folder)
        if trainable_patterns is not None:
            train_only(model, trainable_patterns)
        return model.eval()


def train_only(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make θ the parameters whose names fit a pattern, and freeze the rest.

    Args:
        model: A model whose parameters that could have been trained require a gradient: all of a
            full model, those of the adapter of a PEFT model.
        patterns: At least one, each of which has to fit a parameter.

    Raises:
        ValueError: Naming the first pattern that fits nothing.
    """
    opened = [name for name, p in model.named_parameters() if p.requires_grad]
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = fnmatch.filter(opened, pattern)
        if not fitting:
            raise ValueError(
                f"The pattern {pattern!r} of checkpoint.trainable fits no parameter (under an "
                f"adapter, none of its own): the parameters have names such as {opened[0]!r} and "
                f"{opened[-1]!r} (* stands for any text)."
            )
        chosen.update(fitting)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def tokenizer_beside(path: str | Path, model: Any) -> Any:
    """The tokenizer of a checkpoint, or of the base of its model; None where there is none."""
    for place in (Path(path), Path(model.config.name_or_path or path)):
        if (place / "tokenizer_config.json").exists():
            return load_tokenizer(place)
    return None


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

    if Path(source).is_dir():
        manifest.verify(source)
    with loading("tokenizer", source):
        saved_as = get_tokenizer_config(source).get("tokenizer_class")
        plain = saved_as in ("TokenizersBackend", "PreTrainedTokenizerFast")
        kind = PreTrainedTokenizerFast if plain else AutoTokenizer
        tokenizer = kind.from_pretrained(source, trust_remote_code=False, **options)
        if not isinstance(tokenizer.model_max_length, (int, float)):
            raise FileError(f"The tokenizer in {source}: its model_max_length is not a number.")
        return tokenizer


def meta_model(
    folder: str | Path,
    *,
    base_model: str | Path | None = None,
    allow_hub: bool = False,
    trainable_patterns: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """The model of a checkpoint without its weights, on the device meta.

    Args:
        folder: Folder with `config.json`, or with `adapter_config.json`; a name on the model hub.
        base_model: Base of the adapter, where the one its config names is not to be used.
        allow_hub: Whether a base that the adapter's config names may come from the model hub.
        trainable_patterns: Names (with * and ?) of what moved; None: the adapter, or all weights.
        dtype: Type of the base's weights.

    Returns:
        The model, with its trainable set.

    Raises:
        FileNotFoundError: If the base model is a path that is not there.
        FileError: If a configuration cannot be read.
    """
    from transformers import AutoModelForCausalLM

    source = str(folder)
    folder = Path(folder)
    adapter = read_adapter(folder) if CheckpointFolder(folder).is_adapter else None
    if adapter is not None:
        source = adapter_base(folder, base_model, allow_hub=allow_hub)
    with torch.device("meta"):
        config = model_config(source)
        with loading("model", source, "config.json"):
            model = cast("Any", AutoModelForCausalLM.from_config(config, dtype=dtype))
        if adapter is not None:
            from peft import get_peft_model

            adapter.inference_mode = False
            adapter.base_model_name_or_path = model.name_or_path or None  # else peft warns
            with quiet_libraries():
                model = cast("Any", get_peft_model(model, adapter))
    if trainable_patterns is not None:
        train_only(model, trainable_patterns)
    return model
