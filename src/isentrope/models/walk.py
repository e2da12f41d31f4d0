"""Modules and parameters of a model by name, as torch lists them, in one pass over each module.

torch walks by recursion: each module is handed up through all modules above it. In a LoRA model
that is ten, and a walk takes as long as a small layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def modules_by_name(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `named_modules`, each module once, by its first name.

    Args:
        model: Any module.

    Yields:
        Names and modules, in torch's order.
    """
    seen, stack = set[nn.Module](), [("", model)]
    while stack:
        name, module = stack.pop()
        if module in seen:
            continue
        seen.add(module)
        yield name, module
        prefix = f"{name}." if name else ""
        children = [(f"{prefix}{k}", child) for k, child in module.named_children()]
        stack += reversed(children)


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """As `named_parameters`, each parameter once, by its first name.

    Args:
        model: Any module.

    Returns:
        The parameters, in torch's order.
    """
    found: dict[nn.Parameter, str] = {}
    for name, module in modules_by_name(model):
        prefix = f"{name}." if name else ""
        for leaf, parameter in module.named_parameters(recurse=False):
            found.setdefault(parameter, f"{prefix}{leaf}")
    return {name: parameter for parameter, name in found.items()}
