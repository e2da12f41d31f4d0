"""How many parameters a checkpoint has, from its configuration files: no weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isentrope.models.adapter import require_tunable
from isentrope.models.architecture import UnsupportedModelError
from isentrope.models.base_model import adapter_base, model_config
from isentrope.models.sharding import layers_of
from isentrope.models.trainable import train_only
from isentrope.system.checkpoint_folder import ADAPTER_CONFIG, CheckpointFolder
from isentrope.system.reading import reading


@dataclass(frozen=True)
class Shapes:
    """What a checkpoint's configuration files say.

    Attributes:
        parameters: Parameters of the model, adapter included.
        trainable: d, those that the optimizer moves.
        layers: Decoder layers.
        spread: Parameters that `checkpoint.shard_base` spreads over the processes.
        spread_trainable: Those of them that the optimizer moves: without an adapter.
        present: Whether the weights' files are on this machine.
    """

    parameters: int
    trainable: int
    layers: int
    spread: int
    spread_trainable: int
    present: bool

    def of_a_process(self, whole: int, spread: int, processes: int) -> int:
        """What a process holds of parameters of which some are spread."""
        return whole if processes == 1 else whole - spread + -(-spread // processes)


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
    folder = Path(folder)
    settings, source = CheckpointFolder(folder).adapter, str(folder)
    if settings:
        require_tunable(folder, settings)
        named = settings.get("base_model_name_or_path")
        source = adapter_base(folder, named, base_model, allow_hub=allow_hub)
    config = model_config(source)
    model = _without_numbers(folder, config, trainable_patterns)
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    spread = _spread(model)
    return Shapes(
        parameters=sum(p.numel() for p in model.parameters()),
        trainable=sum(trained),
        layers=int(config.num_hidden_layers),
        spread=sum(p.numel() for p in spread),
        spread_trainable=sum(p.numel() for p in spread if p.requires_grad),
        present=any(Path(source).glob("*.safetensors")),
    )


def _spread(model: Any) -> list[nn.Parameter]:
    """The parameters of the decoder layers, under an adapter the frozen ones."""
    adapted = hasattr(model, "peft_config")
    try:
        layers = layers_of(model.get_base_model() if adapted else model)
    except UnsupportedModelError:
        return []
    return [p for p in layers.parameters() if not (adapted and p.requires_grad)]


def _without_numbers(folder: Path, config: Any, patterns: Sequence[str] | None) -> nn.Module:
    """The model on the meta device, its trainable parameters marked."""
    from peft import PeftConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if (folder / ADAPTER_CONFIG).exists():
            with reading(folder / ADAPTER_CONFIG):
                adapter = PeftConfig.from_pretrained(str(folder))
            adapter.inference_mode = False
            adapter.base_model_name_or_path = model.name_or_path or None  # else peft warns
            model = get_peft_model(model, adapter)
    if patterns is not None:
        train_only(model, patterns)
    return model.eval()
