"""Which parameter is which in an optimizer state: torch numbers them, θ has names.

In this order, the first that applies:

    names       the caller's own list; or the state's own keys, where those are names (FSDP, DCP)
    identity    a live optimizer that holds the model's own Parameters
    param_names torch writes them where the optimizer was built from named parameters
    sidecar     `parameter_names.json` beside the file: a list of names, or one list per group
    order       Hugging Face's: named_parameters() in order, split into decay and no-decay

A mismatch is an error: a list that contradicts the state's own names is refused, and no state is
ever matched by position across another number of parameters, or where it has names. Names are
compared without what wrappers of training add to them:

    FSDP                      _fsdp_wrapped_module.    anywhere
    activation checkpointing  _checkpoint_wrapped_module.    anywhere
    torch.compile             _orig_mod.               anywhere
    DDP, DeepSpeed            module.                  in front
    PEFT                      base_model.model.        in front, and .default after a tensor's kind

A name that then fits two parameters, or none, is refused.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

from torch import nn

from isentrope.policy.language_model import Policy
from isentrope.system.errors import FileError
from isentrope.system.reading import read_json

Names = Sequence[str] | Sequence[Sequence[str]]
"""Names in an optimizer's order, flat or one list per param group."""
SIDECAR = "parameter_names.json"
NAMES_DECIDE = (
    f"Names decide it: write the names of the optimizer's parameters, in its order, as a list into "
    f"{SIDECAR} beside its file. In a run of TRL that goes on, EntropyProbe(..., record=True) "
    "writes it at the next checkpoint."
)
"""What to do where only names can tell the order of parameters."""
PARTLY_FROZEN = (
    "If training froze part of the model, say what it trained: checkpoint.trainable (patterns of "
    "parameter names) in YAML, requires_grad_ in Python."
)
"""Way out where a policy and its optimizer train different parameters."""
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
    plain = ".".join(part for part in name.split(".") if part not in WRAPPERS)
    return re.sub(r"^(module\.)+", "", plain)


def plain_name(name: str, adapters: Collection[str] = ("default",)) -> str:
    """A parameter's name without what wrappers and PEFT add to it.

    Args:
        name: A name, such as "module._orig_mod.base_model.model.lm_head.lora_A.default.weight".
        adapters: Names of PEFT's adapters, which are a component of a dotted name.

    Returns:
        For example "lm_head.lora_A.weight".
    """
    plain = re.sub(r"^((module|base_model\.model)\.)+", "", unwrapped(name))
    return ".".join(part for part in plain.split(".") if part not in adapters)


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
    names_by_id = {id(p): name for name, p in model.named_parameters()}
    every_name = model.named_parameters(remove_duplicate=False)
    exact = {name: names_by_id[id(p)] for name, p in every_name}
    adapters = ("default", *getattr(model, "peft_config", {}))
    plain: dict[str, dict[str, None]] = {}
    for alias, name in exact.items():
        plain.setdefault(plain_name(alias, adapters), {})[name] = None
    kinds = {kind for kind, adapter in _pair_neighbours(exact) if adapter in adapters}
    foreign = {adapter for kind, adapter in _pair_neighbours(names) if kind in kinds}
    # the one adapter that all names are of, under another name than the model has for it
    is_single = len(foreign - {"weight", "bias"}) == len(foreign) == 1
    theirs = (*adapters, *foreign) if is_single else adapters
    spelt: list[str] = []
    for name in names:
        fitting = [exact[name]] if name in exact else [*plain.get(plain_name(name, theirs), {})]
        if len(fitting) != 1:
            (near,) = get_close_matches(name, names_by_id.values(), n=1, cutoff=0.0)
            flat = (
                " It is a flattened one of FSDP: save the state by FSDP.optim_state_dict, or by "
                "get_optimizer_state_dict with full_state_dict."
            )
            raise ValueError(
                f"The optimizer's parameter {name!r} is "
                + (f"{fitting[0]!r} or {fitting[1]!r}" if fitting else "not one of the policy's")
                + f" without the prefixes of FSDP, DDP, PEFT and torch.compile; the nearest name "
                f"is {near!r}. The model, or its adapter, is another, or the model's own names are "
                f"to be given in {SIDECAR}.{flat if FLAT_PARAMETER in name else ''}"
            )
        spelt += fitting
    return spelt


def _pair_neighbours(names: Iterable[str]) -> set[tuple[str, str]]:
    """Each two components that stand beside each other in a name, such as lora_A and default."""
    return set(chain.from_iterable(pairwise(name.split(".")) for name in names))


def names_of_states(
    policy: Policy,
    groups: Sequence[Mapping[str, Any]],
    *,
    chosen: Names | None = None,
    parameters: Sequence[nn.Parameter] | None = None,
    sidecar: Names | None = None,
) -> tuple[list[str], str]:
    """The model's name of each parameter an optimizer holds, in the optimizer's order.

    Args:
        policy: The policy whose θ the optimizer moves.
        groups: The optimizer's param_groups; "params" holds positions or names.
        chosen: The caller's names, flat or one list per group.
        parameters: The live optimizer's Parameters in order, if there is one.
        sidecar: The content of the sidecar file, if there is one.

    Returns:
        The names, and how they were found: "names", "identity", "param_names", "sidecar", "order".

    Raises:
        ValueError: If names and parameters do not correspond one to one, naming the first that
            does not.
    """
    sizes = [len(group["params"]) for group in groups]
    live = None if chosen is not None else _match_by_identity(policy, parameters)
    indices = [index for group in groups for index in group["params"]]
    stored = None
    source = ""
    if all(isinstance(index, str) for index in indices):
        stored = indices
        source = "names"
    elif all("param_names" in group for group in groups if group["params"]):
        stored = _flatten([list(g.get("param_names") or ()) for g in groups], sizes)
        source = "param_names"
    outer = chosen if chosen is not None else sidecar
    listed = None if outer is None else _flatten(outer, sizes)
    if live is not None:
        names = live
        source = "identity"
    elif listed is not None and (chosen is not None or stored is None):
        names = listed
        source = "names" if chosen is not None else "sidecar"
    elif stored is not None:
        names = stored
    else:
        names = _order_as_hugging_face(policy, groups, sizes)
        source = "order"
    names = model_spelling(policy.model, names)
    if stored is not None and listed is not None:
        _require_agreement(policy, stored, listed)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"Parameter {twice!r} is listed twice in the optimizer's names.")
    if missing := sorted(set(policy.names) - set(names), key=policy.names.index):
        raise ValueError(
            f"The optimizer does not hold parameter {missing[0]!r}, which the policy trains "
            f"({len(missing)} of {len(policy.names)} are not there). {PARTLY_FROZEN}"
        )
    return names, source


def _require_agreement(policy: Policy, stored: Sequence[str], listed: Sequence[str]) -> None:
    """Refuse a list that says another order than the state's own names, where those are known."""
    try:
        spelt = model_spelling(policy.model, stored)
    except ValueError:
        return  # names of another program's making, which the list is there to replace
    pairs = zip(spelt, model_spelling(policy.model, listed), strict=True)
    for i, (by_state, by_list) in enumerate(pairs):
        if by_state != by_list:
            raise ValueError(
                f"The optimizer's parameter {i} is {stored[i]!r} by the state's own name, and "
                f"{listed[i]!r} by the list given (names=, or {SIDECAR}): omit the list."
            )


def _match_by_identity(
    policy: Policy, parameters: Sequence[nn.Parameter] | None
) -> list[str] | None:
    """Names by identity; None if the optimizer holds no Parameter of this model."""
    by_id = {id(p): name for name, p in policy.model.named_parameters()}
    names = [by_id.get(id(p)) for p in parameters or ()]
    if not any(names):
        return None
    if None in names:
        raise ValueError(
            f"Parameter {names.index(None)} of the optimizer is not one of the policy's model, "
            "though others are: build the optimizer from this model alone."
        )
    return cast(list[str], names)


def _flatten(names: Names, sizes: Sequence[int]) -> list[str]:
    """Names in the optimizer's order, their number checked in total or group by group."""
    in_groups = any(not isinstance(name, str) for name in names)
    lists = [list(part) for part in names] if in_groups else [[str(name) for name in names]]
    counts = [len(part) for part in lists]
    expected = list(sizes) if in_groups else [sum(sizes)]
    if counts != expected:
        raise ValueError(
            f"The optimizer's groups hold {expected} parameters, and {counts} are named."
        )
    return list(chain.from_iterable(lists))


def _order_as_hugging_face(
    policy: Policy, groups: Sequence[Mapping[str, Any]], sizes: Sequence[int]
) -> list[str]:
    """Trainable names as transformers.Trainer hands them to its optimizer."""
    remedy = f"pass names=, or put {SIDECAR} beside the file."
    if len(groups) > 2:
        raise ValueError(f"The optimizer has {len(groups)} param groups and no names: {remedy}")
    if len(groups) == 1:
        all_names = [name for name, _ in policy.model.named_parameters()]
        parts = [all_names if sizes[0] == len(all_names) else list(policy.names)]
    else:
        from transformers import Trainer

        # The method reads nothing of the trainer itself: the rule is the installed library's own.
        decayed = set(Trainer.get_decay_parameter_names(cast(Any, None), policy.model))
        parts = [
            [name for name in policy.names if name in decayed],
            [name for name in policy.names if name not in decayed],
        ]
        if parts[1] and groups[1].get("weight_decay"):
            raise ValueError(
                "The second param group has weight decay, so the groups are not Hugging Face's "
                f"decay and no-decay: {remedy}"
            )
    for group, (names, size) in enumerate(zip(parts, sizes, strict=True)):
        if len(names) != size:
            raise ValueError(
                f"Param group {group} holds {size} parameters where the policy has {len(names)}: "
                f"without names they cannot be matched. {PARTLY_FROZEN}"
            )
    return list(chain.from_iterable(parts))


def read_names(sidecar: Path) -> Names:
    """The names of an optimizer's parameters, from parameter_names.json."""
    names: list[str | list[Any]] = read_json(sidecar, kind=list)
    flat: list[Any] = [x for part in names for x in (part if isinstance(part, list) else [part])]
    if not all(isinstance(name, str) for name in flat):
        raise FileError(
            f"{sidecar} must be a list of parameter names, or one list per param group."
        )
    return names
