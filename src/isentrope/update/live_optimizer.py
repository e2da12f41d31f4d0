"""Is the step of a live optimizer the one that torch's class of this name takes?

A state_dict does not show it: a subclass of torch's AdamW with a step of its own (Cautious AdamW,
a step that masks or projects) has the same groups and states. The object does. Its function is
followed through wrappers that call it, of learning rate schedulers and accelerate; a wrapper or a
step of any other code takes another step, or may.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

_STEPS = ("torch",)
_WRAPPERS = ("torch", "accelerate", "transformers", "deepspeed")


def require_torch_step(optimizer: torch.optim.Optimizer | type[torch.optim.Optimizer]) -> None:
    """Refuse an optimizer whose step is not that of its class in torch.optim.

    Args:
        optimizer: A torch optimizer, which may be in accelerate's wrapper, or its class.

    Raises:
        ValueError: Naming the class, and the code that its step is of.
    """
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    replaced = cast(Any, None if isinstance(optimizer, type) else vars(optimizer).get("step"))
    chains = ((cast(Any, kind).step, _STEPS), (replaced, _WRAPPERS))
    for step, trusted in chains:
        for module in _find_modules(step):
            if module.partition(".")[0] not in trusted:
                raise ValueError(
                    f"The step of the optimizer {kind.__name__} is one of {module} and not of "
                    "torch.optim, so it is not the step that its param groups describe, which is "
                    "all that is computed here: train with the class of torch itself, whose step "
                    "nothing replaces."
                )


def bare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer in the wrapper of accelerate or of anything like it.

    Args:
        optimizer: An optimizer, wrapped or not.

    Returns:
        The innermost one.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _find_modules(step: Callable[..., Any] | None) -> Iterator[str]:
    """The modules that a function and those that it wraps are defined in."""
    while step is not None:
        function = getattr(step, "__func__", step)
        names = getattr(function, "__globals__", None)
        yield type(function).__module__ if names is None else str(names.get("__name__"))
        step = getattr(function, "__wrapped__", None)
