"""Selects the parameters that training changed, by patterns of their names.

Patterns are those of fnmatch, on the names of `model.named_parameters()`: * is any text, ? one
character, [ab] one of two. "model.layers.*" is every layer, "*norm*" every norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn


def train_only(model: nn.Module, patterns: Sequence[str]) -> None:
    """Make θ the parameters whose names fit a pattern, and freeze the rest.

    Args:
        model: A model whose parameters that could have been trained require a gradient: all of a
            full model, those of the adapter of a PEFT model.
        patterns: At least one, each of which has to fit a parameter.

    Raises:
        ValueError: Naming the first pattern that fits nothing.
    """
    open_names = [name for name, p in model.named_parameters() if p.requires_grad]
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in open_names):
            continue
        raise ValueError(
            f"The pattern {pattern!r} of checkpoint.trainable fits no parameter (under an adapter, "
            f"none of its own): the parameters have names such as {open_names[0]!r} and "
            f"{open_names[-1]!r} (* stands for any text)."
        )
    for name, parameter in model.named_parameters():
        keep = parameter.requires_grad and any(fnmatchcase(name, p) for p in patterns)
        parameter.requires_grad_(keep)
