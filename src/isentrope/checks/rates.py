"""The settings of the param groups, compared with other records of the checkpoint.

Records, in this order; the first that exists is used: `contract.json` (settings by parameter name)
and `scheduler.pt` (the last rate of each group).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isentrope.checks.checkpoint import Finding
from isentrope.recording.contract import read_contract
from isentrope.system.checkpoint_folder import CONTRACT
from isentrope.system.errors import FileError
from isentrope.system.reading import read_torch
from isentrope.update.optimizer_state import SETTINGS, OptimizerState, read_names
from isentrope.update.parameter_names import SIDECAR

NAME = "rates of the param groups"
SCHEDULER = "scheduler.pt"


def check_rates(state: OptimizerState, checkpoint: str | Path) -> Finding:
    """Rates, weight decay and betas against the checkpoint's own records, if there are others."""
    groups = describe_groups(state)
    record, difference = disagreement(state, Path(checkpoint))
    if record is None:
        return Finding(NAME, None, f"{groups}; no record of training to compare with")
    return Finding.judged(
        NAME,
        f"{groups}; {difference}" if difference else None,
        "The groups of optimizer.pt are not those of training: exchanged rates give another "
        "step. Restore the optimizer's file, or the record.",
        f"{groups}; as in {record}",
    )


def describe_groups(state: OptimizerState) -> str:
    """The settings of every param group, and what η is where rates differ."""
    groups = state.distinct_groups
    words = " and ".join(map(describe_group, groups))
    if len({float(group["lr"]) for group in groups}) < 2:
        return words
    ratios = ", ".join(f"{float(g['lr']) / state.learning_rate:.3g}" for g in groups[1:])
    return (
        f"{words}. The η of a sweep is that of the first group; the others move at {ratios} times η"
    )


def disagreement(state: OptimizerState, checkpoint: Path) -> tuple[str | None, str]:
    """Name of a record of training, or None, and its first difference in words, if there is one."""
    for name, compare in {CONTRACT: _contract, SCHEDULER: _scheduler}.items():
        if (checkpoint / name).is_file():
            difference = compare(state, checkpoint)
            if difference is not None:
                return name, difference
    return None, ""


def describe_group(group: Mapping[str, Any]) -> str:
    """The settings of a param group that matter to its step: "η 0.001 (28 tensors)"."""
    labels = {"lr": "η", "weight_decay": "weight decay", "betas": "betas", "momentum": "momentum"}
    known = {words: group[key] for key, words in labels.items() if group.get(key) is not None}
    parts = [f"{words} {_plain(value)}" for words, value in known.items()]
    return f"{'; '.join(parts)} ({group['tensors']} tensors)"


def _plain(value: Any) -> str:
    values = value if isinstance(value, (list, tuple)) else [value]
    return ", ".join(f"{float(x):g}" for x in values)


def _contract(state: OptimizerState, folder: Path) -> str | None:
    groups = read_contract(folder).get("param_groups")
    names = folder / SIDECAR
    if not groups or not names.is_file():
        return None
    lists = read_names(names)
    if lists and isinstance(lists[0], str):
        lists = [lists]
    if len(lists) != len(groups):
        return None
    recorded = {name: group for part, group in zip(lists, groups, strict=True) for name in part}
    for name, group in state.groups.items():
        for key in SETTINGS:
            there = recorded.get(name, {}).get(key)
            if there is not None and key in group and _plain(there) != _plain(group[key]):
                return (
                    f"{key} of {name} is {_plain(group[key])}, and {CONTRACT} has {_plain(there)}"
                )
    return ""


def _scheduler(state: OptimizerState, folder: Path) -> str | None:
    try:
        saved = read_torch(folder / SCHEDULER)
    except FileError:
        return None
    rates = saved.get("_last_lr") if isinstance(saved, Mapping) else None
    if not rates or len(rates) <= max(state.group_index.values()):
        return None
    for name, index in state.group_index.items():
        here = float(state.groups[name]["lr"])
        if abs(here - float(rates[index])) > 1e-9 * abs(here):
            there = float(rates[index])
            return f"group {index} has lr {here:g}, and {SCHEDULER} has {there:g} for it"
    return ""
