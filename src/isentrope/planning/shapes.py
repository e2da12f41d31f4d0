"""A policy without numbers: the model of a checkpoint as its configuration files describe it.

config.json and adapter_config.json give every shape and type. No weight is read.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from isentrope.models.adapter import (
    require_tunable,
)
from isentrope.models.architecture import UnsupportedModelError
from isentrope.models.base_model import adapter_base, model_config
from isentrope.models.precision import Precision
from isentrope.models.sharding import layers_of
from isentrope.models.trainable import train_only
from isentrope.policy.language_model import Policy
from isentrope.policy.scorer import Scorer
from isentrope.system.checkpoint_folder import ADAPTER_CONFIG, CheckpointFolder
from isentrope.system.reading import reading
from isentrope.update.optimizer_state import file_of


@dataclass(frozen=True)
class Shapes:
    """What a checkpoint's configuration files say.

    Attributes:
        folder: The checkpoint.
        source: Folder or hub name of the model, the base of an adapter.
        config: The model's configuration.
        trainable_patterns: Names of what was trained; None for the adapter or all weights.
        parameters: Parameters of the model, adapter included.
        trainable: d, those that the optimizer moves.
        largest: Numbers of the largest trainable tensor.
        layers: Decoder layers.
        vocabulary: Entries of the output embedding.
        hidden: Width of the hidden states.
        file_bytes: Bytes of the weights' files; 0 where they are not on this machine.
        optimizer_bytes: Bytes of the optimizer's file; 0 where it is not on this machine.
        spread: Parameters that `checkpoint.shard_base` spreads over the processes.
        spread_trainable: Those of them that the optimizer moves: without an adapter.
        largest_spread: Numbers of the largest tensor of `spread_trainable`.
    """

    folder: Path
    source: str
    config: Any
    trainable_patterns: tuple[str, ...] | None
    parameters: int
    trainable: int
    largest: int
    layers: int
    vocabulary: int
    hidden: int
    file_bytes: int
    spread: int
    spread_trainable: int = 0
    largest_spread: int = 0
    optimizer_bytes: int = 0

    @property
    def cached_numbers(self) -> int:
        """Keys and values that a token leaves in the cache."""
        config = self.config
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return 2 * self.layers * (getattr(config, "num_key_value_heads", None) or heads) * size


def shapes_of(
    folder: str | Path,
    *,
    base_model: str | Path | None = None,
    allow_hub: bool = False,
    trainable_patterns: Sequence[str] | None = None,
    optimizer: str | Path | None = None,
) -> Shapes:
    """Read the shapes of a checkpoint.

    Args:
        folder: Folder with `config.json`, or with `adapter_config.json`.
        base_model: Base of the adapter, where the one its config names is not to be used.
        allow_hub: Whether a base that the adapter's config names may come from the model hub.
        trainable_patterns: Names (with * and ?) of the parameters that training moved; None for the
            whole adapter, or all weights.
        optimizer: The optimizer's file or its folder; None for optimizer.pt in the folder.

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
    patterns = None if trainable_patterns is None else tuple(trainable_patterns)
    model = _without_numbers(folder, config, patterns)
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    spread = _spread(model)
    moved = [p.numel() for p in spread if p.requires_grad]
    state = file_of(optimizer or folder)
    files = {path for place in (Path(source), folder) for path in place.glob("*.safetensors")}
    return Shapes(
        folder=folder,
        source=source,
        config=config,
        trainable_patterns=patterns,
        parameters=sum(p.numel() for p in model.parameters()),
        trainable=sum(sizes),
        largest=max(sizes),
        layers=int(config.num_hidden_layers),
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        file_bytes=sum(path.stat().st_size for path in files),
        spread=sum(p.numel() for p in spread),
        spread_trainable=sum(moved),
        largest_spread=max(moved, default=0),
        optimizer_bytes=state.stat().st_size if state.is_file() else 0,
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


class ShapePolicy(Policy):
    """A policy of fake tensors; what `Policy` checks in numbers is not checked.

    Attributes:
        direction: v, which is there before a pass.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        *,
        max_tokens: int,
        vocab_chunk: int,
    ) -> None:
        """Wrap a model without numbers.

        Args:
            model: The model, its parameters fake tensors of the runtime dtype.
            precision: The precision in force.
            max_tokens: Padded tokens per micro-batch.
            vocab_chunk: Vocabulary entries at a time.
        """
        self.model: Any = model
        self.tokenizer, self.temperature, self.precision = None, 1.0, precision
        self.max_tokens, self.vocab_chunk = max_tokens, vocab_chunk
        self.compared_derivatives = set[tuple[str, torch.dtype]]()
        self.scorer = Scorer(model)
        self.eos_token_ids, self.pad_token_id = (), 0
        self.names = tuple(n for n, p in model.named_parameters() if p.requires_grad)
        self.direction = {
            n: torch.empty(p.shape, dtype=torch.float64) for n, p in self.theta.items()
        }


def shape_policy(
    shapes: Shapes,
    fake: FakeTensorMode,
    precision: Precision,
    *,
    layers: int,
    vocabulary: int,
    max_tokens: int,
    vocab_chunk: int,
) -> ShapePolicy:
    """The policy of a checkpoint with fewer layers and vocabulary entries, as fake tensors.

    Args:
        shapes: Of the checkpoint.
        fake: The mode in which its tensors are made.
        precision: Precision that it runs in.
        layers: Decoder layers.
        vocabulary: Vocabulary entries.
        max_tokens: Padded tokens per micro-batch.
        vocab_chunk: Vocabulary entries at a time.

    Returns:
        The policy, on the CPU as far as its tensors say.
    """
    config = copy.deepcopy(shapes.config)
    config.num_hidden_layers, config.vocab_size = layers, vocabulary
    for name in ("layer_types", "no_rope_layers"):
        if getattr(config, name, None) is not None:
            setattr(config, name, list(getattr(config, name))[:layers])
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)
    model = _without_numbers(shapes.folder, config, shapes.trainable_patterns)
    if precision.runtime is not None:
        model = model.to(precision.runtime)
    _replace_tensors(model, fake)
    with fake:
        return ShapePolicy(model, precision, max_tokens=max_tokens, vocab_chunk=vocab_chunk)


def _replace_tensors(model: nn.Module, fake: FakeTensorMode) -> None:
    """Put fake tensors in place of those on the meta device; shared ones stay shared."""
    made: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, whose id stays its own
    with fake:
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, x in tensors.items():
                    if x is None:
                        continue
                    if id(x) not in made:
                        new = torch.empty(x.shape, dtype=x.dtype)
                        trained = isinstance(x, nn.Parameter)
                        made[id(x)] = x, nn.Parameter(new, x.requires_grad) if trained else new
                    tensors[name] = made[id(x)][1]  # type: ignore[assignment]
