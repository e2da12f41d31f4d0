"""How many parameters a checkpoint has, from its configuration files: no weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isentrope.models.adapter import require_tunable
from isentrope.models.base_model import adapter_base, model_config
from isentrope.models.trainable import train_only
from isentrope.system.checkpoint_folder import ADAPTER_CONFIG, CheckpointFolder
from isentrope.system.reading import reading


@dataclass(frozen=True)
class Shapes:
    """What a checkpoint's configuration files say.

    Attributes:
        parameters: Parameters of the model, adapter included.
        trainable: d, those that the optimizer moves.
        present: Whether the weights' files are on this machine.
    """

    parameters: int
    trainable: int
    present: bool


def shapes_of(
    folder: str | Path,
    *,
    base_model: str | Path | None = None,
    allow_hub: bool = False,
    trainable_patterns: Sequence[str] | None = None,
) -> Shapes:
    """Read the shapes of a checkpoint.

    Args:
        folder: Folder with `config.json`, or with `adapter_config.json`.
        base_model: Base of the adapter, where the one its config names is not to be used.
        allow_hub: Whether a base that the adapter's config names may come from the model hub.
        trainable_patterns: Names (with * and ?) of the parameters that training moved; None for the
            whole adapter, or all weights.

    Returns:
        The shapes.

    Raises:
        FileNotFoundError: If the base model is a path that is not there.
        FileError: If a configuration cannot be read.
    """
    from peft import PeftConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = Path(folder)
    settings, source = CheckpointFolder(folder).adapter, str(folder)
    if settings:
        require_tunable(folder, settings)
        named = settings.get("base_model_name_or_path")
        source = adapter_base(folder, named, base_model, allow_hub=allow_hub)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(model_config(source), dtype=torch.float32)
        if settings:
            with reading(folder / ADAPTER_CONFIG):
                adapter = PeftConfig.from_pretrained(str(folder))
            adapter.inference_mode = False
            adapter.base_model_name_or_path = model.name_or_path or None  # else peft warns
            model = get_peft_model(model, adapter)
    if trainable_patterns is not None:
        train_only(model, trainable_patterns)
    return Shapes(
        parameters=sum(p.numel() for p in model.parameters()),
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        present=any(Path(source).glob("*.safetensors")),
    )
