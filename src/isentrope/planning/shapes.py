"""The model of a checkpoint without its weights: shapes of parameters, on the device meta."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.models.adapter import read_adapter
from isentrope.models.base_model import adapter_base, loading, model_config
from isentrope.models.checkpoint import train_only


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

    source, folder = str(folder), Path(folder)
    adapter = read_adapter(folder) if CheckpointFolder(folder).is_adapter else None
    if adapter is not None:
        source = adapter_base(folder, base_model, allow_hub=allow_hub)
    with torch.device("meta"):
        config = model_config(source)
        with loading("model", source, "config.json"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if adapter is not None:
            from peft import get_peft_model

            adapter.inference_mode = False
            adapter.base_model_name_or_path = model.name_or_path or None  # else peft warns
            model = get_peft_model(model, adapter)
    if trainable_patterns is not None:
        train_only(model, trainable_patterns)
    return model
