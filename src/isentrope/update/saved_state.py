"""The content of an optimizer's file: in which of the known forms it is, and of whole tensors.

{"state": {0: ...}, "param_groups": [{"params": [0, ...]}]}            torch: by position
{"state": {"name": ...}, "param_groups": [{"params": ["name", ...]}]}  FSDP, DCP, verl: by name
{"state.name.exp_avg": ..., "param_groups.name.lr": ...}               DCP, flattened
{"optimizer": one of these}                                            one level deeper
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from isentrope.system.reading import read_json

Groups = list[Mapping[str, Any]]
States = Mapping[Any, Any]

SHARDED = {"DTensor", "ShardedTensor"}
"""Classes of torch.distributed whose values are one process's part of a tensor."""
GATHER = (
    "gather it in the training job with torch.distributed.checkpoint.state_dict."
    "get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True)) and save that as optimizer.pt"
)
"""How a sharded state becomes a whole one."""


def groups_and_states(saved: Any) -> tuple[Groups, States]:
    """The two parts of an optimizer's state_dict.

    Args:
        saved: A state_dict in one of the forms above.

    Returns:
        Its param_groups, each with "params", and its states.

    Raises:
        ValueError: If it is in none of these forms, holds nothing, or its tensors are shards.
    """
    saved = _inner(saved)
    groups, states = _with_params(list(saved["param_groups"]), saved["state"])
    if not any(group["params"] for group in groups):
        raise ValueError("The optimizer holds no parameters.")
    held = {index for group in groups for index in group["params"]}
    if strangers := [index for index in states if index not in held]:
        raise ValueError(
            f"The optimizer has a state for parameter {strangers[0]!r}, which is in no group."
        )
    kinds = {type(index) is str for index in held}
    if len(kinds) > 1:
        raise ValueError(
            "The optimizer's param groups hold names and numbers side by side: save a state_dict "
            "of one optimizer."
        )
    for name, state in states.items():
        if state:
            _require_whole(name, state.values())
    return groups, states


def before_first_step(file: Path) -> bool:
    """Whether a file is of a trainer's checkpoint before its first step.

    Args:
        file: Any file in the checkpoint's folder.

    Returns:
        True if trainer_state.json says so.
    """
    beside = file.with_name("trainer_state.json")
    return beside.is_file() and read_json(beside, finite=False).get("global_step") == 0


def stored_names(groups: Groups) -> list[str] | None:
    """The names that param groups hold in place of positions.

    Args:
        groups: The optimizer's param_groups.

    Returns:
        All of them in the groups' order; None where the groups hold positions.
    """
    held = [index for group in groups for index in group["params"]]
    return held if held and all(isinstance(index, str) for index in held) else None


def _inner(saved: Any) -> Mapping[str, Any]:
    """The state_dict itself, one level deeper or laid out flat."""
    if _is_mapping(saved):
        if {"state", "param_groups"} <= set(saved):
            return saved
        if any(str(key).startswith("state.") for key in saved):
            return _nested(saved)
        deeper = [value for value in saved.values() if _is_state_dict(value)]
        if len(deeper) == 1:
            return _inner(deeper[0])
    raise ValueError(
        "The optimizer must be a path, a torch optimizer or its state_dict with the keys "
        f"'state' and 'param_groups'; got {_words(saved)}."
    )


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_state_dict(value: Any) -> bool:
    if not _is_mapping(value):
        return False
    flat = any(str(key).startswith("state.") for key in value)
    return flat or {"state", "param_groups"} <= set(value)


def _words(saved: Any) -> str:
    if _is_mapping(saved):
        return f"a dictionary with the keys {[str(key) for key in list(saved)[:4]]}"
    return type(saved).__name__


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """DCP's flattened form: a hyper-parameter a name, gathered into groups of equal settings."""
    states: dict[str, dict[str, Any]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        part, _, rest = key.partition(".")
        name, _, entry = rest.rpartition(".")
        if part not in ("state", "param_groups") or not name:
            raise ValueError(
                f"The optimizer's state is flattened (state.<name>.<entry>), and {key!r} is not "
                "a key of that form."
            )
        (states if part == "state" else settings).setdefault(name, {})[entry] = value
    groups: list[dict[str, Any]] = []
    for name, setting in settings.items():
        for group in groups:
            if {k: v for k, v in group.items() if k != "params"} == setting:
                group["params"].append(name)
                break
        else:
            groups.append({**setting, "params": [name]})
    return {"state": states, "param_groups": groups}


def _with_params(groups: Groups, states: States) -> tuple[Groups, States]:
    """Groups whose parameters are named by the keys of the states where those are names."""
    named = bool(states) and all(isinstance(key, str) for key in states)
    listed = [index for group in groups for index in group.get("params", ())]
    if not named or any(isinstance(index, str) for index in listed):
        if missing := [i for i, group in enumerate(groups) if "params" not in group]:
            raise ValueError(f"Param group {missing[0]} of the optimizer has no 'params'.")
        return groups, states
    names_of = [group.get("param_names") for group in groups]
    if all(names is not None for names in names_of):
        return [
            {**g, "params": [*(n or ())]} for g, n in zip(groups, names_of, strict=True)
        ], states
    if len(groups) != 1 or len(listed) not in (0, len(states)):
        raise ValueError(
            f"The optimizer's states have names, the first is {next(iter(states))!r}, but its "
            f"{len(groups)} param groups hold {len(listed)} numbers: which parameter belongs to "
            "which group is unknown. Save the names in param_groups[...]['params'] too."
        )
    return [{**groups[0], "params": list(states)}], states


def _require_whole(name: Any, values: Iterable[Any]) -> None:
    for value in values:
        kinds = {kind.__name__ for kind in type(value).__mro__}
        if sharded := kinds & SHARDED:
            raise ValueError(
                f"The optimizer's state of {name!r} is a sharded tensor ({sharded.pop()}), of "
                f"which one process has one part: {GATHER}."
            )
