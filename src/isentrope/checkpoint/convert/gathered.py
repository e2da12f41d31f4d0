"""A checkpoint whose tensors are whole: what is read from each layout.

Names are those of the training process. Wrappers' prefixes are taken off where the checkpoint is
written (weights) or read (optimizer).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.models.base_model import model_config
from isentrope.system.reading import reading

State = Mapping[str, Any]
"""A state_dict, or what an optimizer remembers of a parameter."""


@dataclass(frozen=True)
class Gathered:
    """Weights and optimizer state of one checkpoint.

    Attributes:
        layout: Name of the layout, for messages.
        weights: Tensor by name.
        optimizer: A state_dict of torch whose "params" are names; None where none was saved.
        config: Folder with config.json and the tokenizer, where the checkpoint has one.
        training: Settings of the step, by their names in a contract, where the checkpoint has any.
    """

    layout: str
    weights: Mapping[str, Tensor]
    optimizer: State | None
    config: Path | None = None
    training: State = field(default_factory=dict)


Shapes = Mapping[str, torch.Size]


def split_flat(
    parts: Sequence[Tensor], shapes: Shapes, behind: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """Parameters that several processes hold as one flat vector, of which each has a part.

    Args:
        parts: One vector per process.
        shapes: Shape by name, in the vector's order.
        behind: Numbers of padding behind each parameter, None for none; more may be at the vector's
            end.

    Returns:
        Tensors by name.

    Raises:
        ValueError: If the vector does not have the length of the parameters.
    """
    vector = torch.cat([part.flatten() for part in parts])
    sizes = [math.prod(shape) for shape in shapes.values()]
    gaps = behind or [0] * len(sizes)
    padded = [size + gap for size, gap in zip(sizes, gaps, strict=True)]
    if not 0 <= vector.numel() - sum(padded) <= 2 * len(parts):
        raise ValueError(
            f"A flat vector has {vector.numel()} numbers and the parameters of its group "
            f"{sum(padded)}: files are of different checkpoints."
        )
    pieces = vector[: sum(padded)].split(padded)
    return {
        name: piece[: math.prod(shape)].view(tuple(shape)).clone()
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


Split = Callable[[Sequence[Tensor], Shapes], dict[str, Tensor]]


def is_vector(value: Any) -> bool:
    """Whether a state of an optimizer is a flat vector, not one number for all parameters."""
    return isinstance(value, Tensor) and value.dim() > 0


def of_parameters(
    states: Sequence[State], shapes: Shapes, split: Split = split_flat
) -> dict[str, dict[str, Any]]:
    """What the processes remember of a flat vector, as what they remember of each parameter."""
    by_name: dict[str, dict[str, Any]] = {}
    for key, first in states[0].items():
        parts = [state[key] for state in states]
        entries = split(parts, shapes) if is_vector(first) else dict.fromkeys(shapes, first)
        for name, entry in entries.items():
            by_name.setdefault(name, {})[key] = entry
    return by_name


def described_model(config: Path) -> nn.Module:
    """The model of a config.json, without numbers; a tied weight is one parameter of it.

    Args:
        config: The file's folder.

    Returns:
        A causal LM on the meta device.

    Raises:
        FileError: If the file does not describe one.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), reading(config):
        return AutoModelForCausalLM.from_config(model_config(config), trust_remote_code=False)
