"""The content of an optimizer's file, in one of the known forms, and whether it is plausible.

{"state": {0: ...}, "param_groups": [{"params": [0, ...]}]}            torch: by position
{"state": {"name": ...}, "param_groups": [{"params": ["name", ...]}]}  FSDP, DCP, verl: by name
{"state.name.exp_avg": ..., "param_groups.name.lr": ...}               DCP, flattened
{"optimizer": one of these, ...}, under any key                        one level deeper

Tensors must be whole, and rates, moments and steps those that an optimizer of torch can write.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from isentrope.parallel.sharded import first_false, read_numbers, split_like
from isentrope.update.optimizer_rules import state_keys
from isentrope.update.parameter_names import PARTLY_FROZEN, SIDECAR

ParamGroups = list[Mapping[str, Any]]
ParameterStates = Mapping[Any, Mapping[str, Any]]

SQUARES = ("exp_avg_sq", "square_avg")
"""Moments that are means of squared gradients."""
_UNDERSTOOD = {"step", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "momentum_buffer"}
"""Entries that the rules of torch write."""


class MissingStateError(ValueError):
    """A parameter that the batch moves has no state, and others have one."""


def require_plausible(group: Mapping[str, Any], name: str) -> None:
    """Refuse a param group whose settings no optimizer takes.

    Args:
        group: Its settings.
        name: Its name in the message.

    Raises:
        ValueError: Naming the setting.
    """
    if "lr" not in group:
        raise ValueError(f"The {name} has no learning rate (lr).")
    for keys, (fits, words) in _SETTINGS.items():
        for key in keys:
            if key in group and not fits(group[key]):
                raise ValueError(f"{key} of {name} is {group[key]!r}, not {words}.")


def read_moments(
    moments: Mapping[str, Mapping[str, Any]], like: Mapping[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Moments in float64, as their parameters are laid out; refused where no gradient leaves them.

    Args:
        moments: By parameter name, tensors by key, and `step`.
        like: The parameters.

    Returns:
        The same entries; steps are numbers.

    Raises:
        ValueError: If one is missing, of another shape, no numbers, not finite, or a square below
            0; or a step is no whole number above 0.
    """
    numbers: dict[str, dict[str, Any]] = {}
    sound: dict[str, Tensor] = {}
    for name, entries in moments.items():
        numbers[name] = {}
        for key, x in entries.items():
            moment = f"{key!r} of parameter {name!r}"
            if x is None:
                raise ValueError(
                    f"The optimizer has no {moment}: its state is incomplete, or of another "
                    "optimizer with the settings of this one."
                )
            if key == "step":
                numbers[name][key] = float(x)
                continue
            require_shape(like, name, x, f"{key!r} of the optimizer")
            if x.layout != torch.strided or x.is_meta or not x.is_floating_point():
                kind = "meta" if x.is_meta else f"{x.layout} {x.dtype}"
                raise ValueError(
                    f"The moment {moment} is of type {kind}, not plain floating point."
                )
            least = 0.0 if key in SQUARES else -math.inf
            sound[moment] = (x.isfinite() & (x >= least)).all()
            numbers[name][key] = split_like(x, like[name]).double()
    if moment := first_false(sound):
        raise ValueError(
            f"The moment {moment} in the optimizer's state is not finite, or negative where it is "
            "a mean of squares: training diverged before it was saved, or the file is damaged."
        )
    return numbers


def select_moments(
    rule: str,
    groups: Mapping[str, Mapping[str, Any]],
    states: ParameterStates,
) -> dict[str, dict[str, Any]]:
    """What a rule reads of each parameter's state, as it is stored.

    Args:
        rule: One of `optimizer_rules.RULES`.
        groups: Hyper-parameters of each trained parameter, by its name.
        states: The saved state of each.

    Returns:
        Entries by parameter name; None for one that is missing.

    Raises:
        ValueError: If there is a state of a parameter that is not trained, an entry that no rule
            writes, or a step that is no whole number above 0.
    """
    for name, state in states.items():
        if state and name not in groups:
            raise ValueError(
                f"The optimizer has a state for {name!r}, which the policy does not train: load "
                f"the policy with the trainable set of the training run. {PARTLY_FROZEN}"
            )
        if strange := set(state) - _UNDERSTOOD:
            raise ValueError(
                f"The optimizer's state of {name!r} holds {min(strange)!r}, which no supported "
                "rule of torch.optim writes: it is of another optimizer, whose step cannot be "
                "computed."
            )
    steps = {n: s["step"] for n, s in states.items() if s.get("step") is not None}
    on_device = {n: x for n, x in steps.items() if isinstance(x, Tensor) and x.is_cuda}
    # a device that holds steps is asked for all of them at once
    steps |= zip(on_device, read_numbers(x.sum() for x in on_device.values()), strict=True)
    for name, step in steps.items():
        if not (finite_number(step) >= 1 and float(step).is_integer()):
            raise ValueError(f"The step of parameter {name!r} is {step!r}, not a whole number.")
    with_step = {n: {**s, "step": steps.get(n)} for n, s in states.items()}
    return {
        name: {key: with_step[name].get(key) for key in state_keys(rule, group)}
        for name, group in groups.items()
    }


def require_shape(theta: Mapping[str, Tensor], name: str, tensor: Tensor, kind: str) -> None:
    """Refuse a tensor of another shape than its parameter."""
    shape = tuple(theta[name].shape)
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"Parameter {name!r} has shape {shape}, but {kind} matched to it has "
            f"{tuple(tensor.shape)}: the order of the parameters is another (put their names into "
            f"{SIDECAR} beside the file), or the model is, or this is one part of a sharded state."
        )


def finite_number(value: Any) -> float:
    """A finite number, or NaN for what is none."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan


def _are_betas(value: Any) -> bool:
    pair = isinstance(value, (list, tuple)) and len(cast("list[Any]", value)) == 2
    return pair and all(0 <= finite_number(x) < 1 for x in cast("list[Any]", value))


_SETTINGS: dict[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("lr", "eps", "weight_decay", "momentum", "dampening", "alpha"): (
        lambda value: finite_number(value) >= 0,
        "a number of 0 or more",
    ),
    ("amsgrad", "decoupled_weight_decay", "differentiable", "maximize", "nesterov"): (
        lambda value: isinstance(value, bool),
        "true or false",
    ),
    ("betas",): (_are_betas, "two numbers from 0 to below 1"),
}
"""Settings, the values that they can have, and what these are in words."""


SHARDED = {"DTensor", "ShardedTensor"}
"""Classes of torch.distributed whose values are one process's part of a tensor."""
GATHER = (
    "gather it in the training job with torch.distributed.checkpoint.state_dict."
    "get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True)) and save that as optimizer.pt"
)
"""How a sharded state becomes a whole one."""
PLAIN_STATE = (
    "It should hold tensors and plain values alone, as the optimizers of torch do (GaLore, APOLLO "
    "and others, which `optim` of the trainer names, keep objects in it, and their steps are not "
    "computed here): save optimizer.state_dict() by torch.save; where its tensors are sharded "
    f"(DTensor), {GATHER}."
)
"""What to do with a state of other objects."""
_PARTS = {"state", "param_groups"}


def groups_and_states(saved: Any) -> tuple[ParamGroups, ParameterStates]:
    """The two parts of an optimizer's state_dict.

    Args:
        saved: A state_dict in one of the forms above.

    Returns:
        Its param_groups, each with "params", and its states.

    Raises:
        ValueError: If it is in none of these forms, holds nothing, or its tensors are shards.
    """
    saved = _unpack(saved)
    states: ParameterStates = saved["state"]
    groups = _with_params(list(saved["param_groups"]), states)
    indices = [index for group in groups for index in group["params"]]
    if not indices:
        raise ValueError("The optimizer holds no parameters.")
    if len(set(map(type, indices))) > 1:
        raise ValueError(
            "The optimizer's param groups hold names and numbers side by side: save a state_dict "
            "of one optimizer."
        )
    if strangers := states.keys() - set(indices):
        raise ValueError(
            f"The optimizer has a state for parameter {strangers.pop()!r}, which is in no group."
        )
    for name, state in states.items():
        kinds = {kind.__name__ for x in _as_mapping(state).values() for kind in type(x).__mro__}
        if sharded := kinds & SHARDED:
            raise ValueError(
                f"The optimizer's state of {name!r} is a sharded tensor ({sharded.pop()}), of "
                f"which one process has one part: {GATHER}."
            )
    return groups, states


def _unpack(saved: Any) -> Mapping[str, Any]:
    """The state_dict itself, one level deeper or laid out flat."""
    within = _as_mapping(saved)
    candidates = [within, *map(_as_mapping, within.values())]
    complete = [x for x in candidates if {str(key).partition(".")[0] for key in x} >= _PARTS]
    if not complete or (len(complete) > 1 and complete[0] is not within):
        keys = [str(key) for key in within][:4] if within else type(saved).__name__
        raise ValueError(
            "The optimizer must be a path, a torch optimizer or its state_dict with the keys "
            f"'state' and 'param_groups', at most one level deeper; got {keys}."
        )
    return complete[0] if _PARTS.issubset(complete[0]) else _nest(complete[0])


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """DCP's flattened form: every parameter becomes a group of its own."""
    states: dict[str, dict[str, Any]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        part, _, suffix = key.partition(".")
        name, _, entry = suffix.rpartition(".")
        if part not in ("state", "param_groups") or not name:
            raise ValueError(
                f"The optimizer's state is flattened (state.<name>.<entry>), and {key!r} is not "
                "a key of that form."
            )
        (states if part == "state" else settings).setdefault(name, {})[entry] = value
    groups = [{**setting, "params": [name]} for name, setting in settings.items()]
    return {"state": states, "param_groups": groups}


def _with_params(groups: ParamGroups, states: ParameterStates) -> ParamGroups:
    """Groups whose parameters are named by the keys of the states where those are names."""
    listed = [index for group in groups for index in group.get("params", ())]
    if set(map(type, states)) == {str} and str not in map(type, listed):
        if all(group.get("param_names") for group in groups):
            groups = [{**group, "params": group["param_names"]} for group in groups]
        elif len(groups) == 1 and len(listed) in (0, len(states)):
            groups = [{**groups[0], "params": list(states)}]
        else:
            raise ValueError(
                f"The optimizer's states have names, the first is {next(iter(states))!r}, but its "
                f"{len(groups)} param groups hold {len(listed)} numbers: which parameter belongs "
                "to which group is unknown. Save the names in param_groups[...]['params'] too."
            )
    for i, group in enumerate(groups):
        if not isinstance(group.get("params"), (list, tuple)):
            raise ValueError(f"Param group {i} of the optimizer has no list of parameters.")
    return groups
