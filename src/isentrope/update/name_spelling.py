"""Spellings of a parameter's name: what wrappers of training add to it, and PEFT's adapter infix.

    FSDP                      _fsdp_wrapped_module.    anywhere
    activation checkpointing  _checkpoint_wrapped_module.    anywhere
    torch.compile             _orig_mod.               anywhere
    DDP, DeepSpeed            module.                  in front
    PEFT                      base_model.model.        in front, and .default after a tensor's kind

Two names mean one parameter where they are equal without these. A name that then fits two
parameters, or none, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import chain, pairwise
from typing import Any

from torch import nn

WRAPPERS = frozenset(
    {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module"}
)
FLAT_PARAMETER = "_flat_param"
"""What FSDP calls the parameters of a module that it has laid into one vector."""


def unwrapped(name: str) -> str:
    """A name without what FSDP, DDP, DeepSpeed and torch.compile add.

    Args:
        name: A name, such as "module._orig_mod.lm_head.weight".

    Returns:
        For example "lm_head.weight".
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def plain_name(name: str, adapters: Collection[str] = ("default",)) -> str:
    """A parameter's name without what wrappers and PEFT add to it.

    Args:
        name: A name, such as "module._orig_mod.base_model.model.lm_head.lora_A.default.weight".
        adapters: Names of PEFT's adapters, which are a component of a dotted name.

    Returns:
        For example "lm_head.lora_A.weight".
    """
    parts = unwrapped(name).split(".")
    while len(parts) > 1 and (parts[0] == "module" or parts[:2] == ["base_model", "model"]):
        parts = parts[1:] if parts[0] == "module" else parts[2:]
    return ".".join(part for part in parts if part not in adapters)


def adapters_of(model: Any) -> tuple[str, ...]:
    """Names of a model's adapters, and PEFT's default one.

    Args:
        model: Any model.

    Returns:
        "default" first.
    """
    return ("default", *getattr(model, "peft_config", {}))


def model_spelling(model: nn.Module, names: Iterable[str]) -> list[str]:
    """The model's own spelling of each name.

    A parameter that two modules share has the name that `named_parameters` gives it.

    Args:
        model: The model.
        names: Names as an optimizer's state has them.

    Returns:
        One name each, in the same order.

    Raises:
        ValueError: If a name fits no parameter, or more than one.
    """
    names = list(names)
    own = {id(p): name for name, p in model.named_parameters()}
    every = list(model.named_parameters(remove_duplicate=False))
    exact = {name: own[id(p)] for name, p in every}
    adapters = adapters_of(model)
    plain: dict[str, dict[str, None]] = {}
    for alias, name in exact.items():
        plain.setdefault(plain_name(alias, adapters), {})[name] = None
    kinds = {kind for kind, adapter in _neighbours(exact) if adapter in adapters}
    other = {adapter for kind, adapter in _neighbours(names) if kind in kinds}
    # the one adapter that all names are of, under another name than the model has for it
    theirs = (*adapters, *other) if len(other - {"weight", "bias"}) == len(other) == 1 else adapters
    spelt: list[str] = []
    for name in names:
        fitting = [exact[name]] if name in exact else [*plain.get(plain_name(name, theirs), {})]
        if len(fitting) != 1:
            raise ValueError(_refusal(name, fitting, list(own.values())))
        spelt += fitting
    return spelt


def _neighbours(names: Iterable[str]) -> set[tuple[str, str]]:
    """Each two components that stand beside each other in a name, such as lora_A and default."""
    return set(chain.from_iterable(pairwise(name.split(".")) for name in names))


def _refusal(name: str, fitting: Sequence[str], names: Sequence[str]) -> str:
    if fitting:
        return (
            f"The optimizer's parameter {name!r} is ambiguous: without the prefixes of wrappers it "
            f"is {fitting[0]!r} and {fitting[1]!r}. Give the model's own names in "
            "parameter_names.json, in the optimizer's order."
        )
    if FLAT_PARAMETER in name:
        return (
            f"The optimizer's parameter {name!r} is a flattened one of FSDP, which has no name of "
            "the model: save the state by FSDP.optim_state_dict or by "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, with "
            "full_state_dict."
        )
    near = get_close_matches(name, names, n=1, cutoff=0.0)
    return (
        f"The optimizer's parameter {name!r} is not one of the policy's; the nearest name is "
        f"{near[0]!r}. Prefixes of FSDP, DDP, PEFT and torch.compile are known: the model, or its "
        "adapter, is another."
    )
