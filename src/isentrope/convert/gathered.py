"""A checkpoint whose tensors are whole: what is read from each layout.

Names are those of the training process. Wrappers' prefixes are taken off where the checkpoint is
written (weights) or read (optimizer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


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
    optimizer: Mapping[str, Any] | None
    config: Path | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


def by_name(optimizer: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """A state_dict by position as one by name.

    Args:
        optimizer: A state_dict of torch; its numbers count the parameters from 0.
        names: Name of each parameter.

    Returns:
        The same with names in place of numbers.

    Raises:
        ValueError: If the numbers are not those of the names.
    """
    numbers = [n for group in optimizer["param_groups"] for n in group["params"]]
    if sorted(numbers) != list(range(len(names))):
        raise ValueError(
            f"The optimizer counts {len(numbers)} parameters and the model has {len(names)}: they "
            "are of different checkpoints, or part of the model is frozen and left out."
        )
    return {
        "state": {names[n]: state for n, state in optimizer["state"].items()},
        "param_groups": [
            {**group, "params": [names[n] for n in group["params"]]}
            for group in optimizer["param_groups"]
        ],
    }
