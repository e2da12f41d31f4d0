"""Checks of the checkpoint: its adapter is in the model, its optimizer state is of θ.

The settings of the param groups are compared with the first other record that the checkpoint has:
`contract.json` (settings by parameter name), else `scheduler.pt` (the last rate of each group).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from isentrope.checkpoint.files import CONTRACT
from isentrope.checkpoint.record.contract import read_contract
from isentrope.checks.state_order import StateOrder, describe_misplaced, state_order
from isentrope.models.adapter import adapter_mismatch
from isentrope.nouns.vectors import Vector
from isentrope.parallel.sharded import read_numbers
from isentrope.policy.language_model import Policy
from isentrope.system.errors import FileError
from isentrope.system.file_contents import read_torch
from isentrope.update.optimizer_state import (
    GROUP_SETTINGS,
    OptimizerLike,
    OptimizerState,
    before_first_step,
    load_optimizer_state,
)
from isentrope.update.parameter_names import NAMES_DECIDE, SIDECAR, read_names
from isentrope.update.saved_state import SQUARES


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        passed: Whether the check passed; None if it could not be run.
        detail: What was measured, with numbers.
        advice: What to do, in a sentence; empty if passed.
    """

    name: str
    passed: bool | None
    detail: str
    advice: str = ""

    @classmethod
    def judged(cls, name: str, fault: str | None, advice: str, sound: str) -> Finding:
        """A check that failed with a fault and its advice, or that found none.

        Args:
            name: What was checked.
            fault: What is wrong; empty or None where nothing is.
            advice: What to do about it.
            sound: What was measured where nothing is wrong.

        Returns:
            The finding.
        """
        return cls(name, False, fault, advice) if fault else cls(name, True, sound)


ZERO_AT_START = ("lora_B", "lora_embedding_A", "vera_lambda_b", "oft_R")
"""Factors of adapters that PEFT starts at zero."""


def check_adapter(
    policy: Policy, checkpoint: str | Path, optimizer: OptimizerLike | None = None
) -> Finding:
    """Compare the adapter in the model with the one on disk, and look for idle layers.

    Args:
        policy: The policy.
        checkpoint: Its folder.
        optimizer: Its optimizer's state, which separates a layer that no gradient has reached from
            one whose values are lost.

    Returns:
        The finding; not checked for a full model.
    """
    name = "adapter loaded"
    if not (Path(checkpoint) / "adapter_model.safetensors").exists():
        return Finding(name, None, "the checkpoint has no adapter")
    if difference := adapter_mismatch(policy.model, checkpoint):
        advice = "The model is not this checkpoint: load it with Policy.from_checkpoint."
        return Finding(name, False, difference, advice)
    factors = {n: p for n, p in policy.theta.items() if set(n.split(".")) & set(ZERO_AT_START)}
    nonzero = read_numbers(p.any() for p in factors.values())
    zero = [n for n, x in zip(factors, nonzero, strict=True) if not x]
    detail = f"{len(policy.names)} tensors equal those on disk"
    if not zero:
        return Finding(name, True, detail)
    idle = f"{len(zero)} of {len(factors)} factors are all zero, the first is {zero[0]}"
    if len(zero) == len(factors):
        advice = "The adapter is at its initial value and changes nothing: is this step 0?"
        fresh = before_first_step(Path(checkpoint) / "adapter_config.json")
        fault = None if fresh else idle
        return Finding.judged(name, fault, advice, f"{idle}, as before the first step")
    untouched = optimizer is not None and _are_untouched(policy, optimizer, zero)
    return Finding.judged(
        name,
        None if untouched else idle,
        "A zero factor switches its layer's adapter off, on disk and in the model, while others "
        "are trained: save the adapter again, or train that layer.",
        f"{detail}; {idle}, and no gradient has reached them",
    )


def _are_untouched(policy: Policy, optimizer: OptimizerLike, names: list[str]) -> bool:
    """Whether the optimizer's moments of these parameters are zero too, or it has none of them."""
    try:
        state = load_optimizer_state(policy, optimizer)
    except (ValueError, FileNotFoundError):
        return False  # which is the finding of check_optimizer
    trained = [n for n in names if n not in state.untrained]
    moments = [x for n in trained for x in state.moments[n].values() if isinstance(x, Tensor)]
    if trained and not moments:
        return False  # a fresh optimizer, which tells nothing
    return not any(read_numbers(x.any() for x in moments))


def check_optimizer(
    policy: Policy, gradient: Vector, optimizer: OptimizerLike, like_training: bool = True
) -> Finding:
    """Check that the stored second moments belong to the parameters they were matched to.

    Parameters of one shape can be exchanged without any shape failing; `state_order` compares the
    fit of every exchange.

    Args:
        policy: The policy.
        gradient: The gradient of the loss on an update batch, by parameter name.
        optimizer: As for `optimizer_step`.
        like_training: Whether the gradient is of prompts and rewards as training has them. Where
            it is not, a better order is no evidence.

    Returns:
        The finding; not checked for optimizers without second moments.
    """
    name = "optimizer state matches"
    try:
        state = load_optimizer_state(policy, optimizer)
        state.require_still(gradient)
    except (ValueError, FileNotFoundError) as error:
        return Finding(name, False, str(error))
    detail = f"matched by {state.matched_by}"
    if state.untrained:
        detail += f"; {len(state.untrained)} parameters have none, and no gradient reaches them"
    order = fit_of_order(state, gradient)
    if order is None:
        return Finding(name, None, f"{detail}; {state.rule} has no second moments to compare")
    if order.better and not like_training:
        detail += "; their order is not confirmed by these prompts, which are not those of training"
        return Finding(name, None, detail, f"{NAMES_DECIDE} Prompts of training may decide it too.")
    if order.better:
        return Finding(
            name,
            False,
            f"{detail}; {describe_misplaced(order.better)}",
            "The optimizer state is in the wrong order: save its parameter names beside it "
            "(parameter_names.json) or build the optimizer from named_parameters().",
        )
    if order.open:
        detail += (
            f"; not contradicted by second moments, to which {order.open[0]} and {order.open[1]} "
            "exchanged would fit about as well"
        )
        if state.matched_by == "order":
            return Finding(name, None, detail, NAMES_DECIDE)
        return Finding(name, True, detail)
    return Finding(name, True, f"{detail}; second moments fit their parameters better than others")


def fit_of_order(state: OptimizerState, gradient: Vector) -> StateOrder | None:
    """How well an optimizer's second moments fit the parameters they were matched to.

    Args:
        state: The optimizer's state.
        gradient: Gradient of the loss by parameter name.

    Returns:
        As `state_order`; None for an optimizer without second moments, or a fresh one.
    """
    squares = {
        name: moments[key]
        for name, moments in state.moments.items()
        for key in SQUARES
        if key in moments
    }
    trained = len(state.moments) - len(state.untrained)
    return state_order(gradient, squares) if squares and len(squares) == trained else None


RATES = "rates of the param groups"
SCHEDULER = "scheduler.pt"


def check_rates(state: OptimizerState, checkpoint: str | Path) -> Finding:
    """Rates, weight decay and betas against the checkpoint's own records, if there are others."""
    groups = describe_groups(state)
    record, difference = disagreement(state, Path(checkpoint))
    if record is None:
        return Finding(RATES, None, f"{groups}; no record of training to compare with")
    return Finding.judged(
        RATES,
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
    for record, reader in {CONTRACT: _read_contract_groups, SCHEDULER: _read_last_rates}.items():
        recorded = reader(state, checkpoint) if (checkpoint / record).is_file() else {}
        for name, recorded_group in recorded.items():
            group = state.groups.get(name, {})
            for key in GROUP_SETTINGS:
                value = _write_numbers(group.get(key))
                recorded_value = _write_numbers(recorded_group.get(key))
                if value and recorded_value and value != recorded_value:
                    return record, f"{key} of {name} is {value}, and {record} has {recorded_value}"
        if recorded:
            return record, ""
    return None, ""


def describe_group(group: Mapping[str, Any]) -> str:
    """The settings of a param group that matter to its step: "η 0.001 (28 tensors)"."""
    labels = {"lr": "η", "weight_decay": "weight decay", "betas": "betas", "momentum": "momentum"}
    values = {words: group[key] for key, words in labels.items() if group.get(key) is not None}
    parts = [f"{words} {_write_numbers(value)}" for words, value in values.items()]
    return f"{'; '.join(parts)} ({group['tensors']} tensors)"


def _write_numbers(value: Any) -> str:
    """Numbers as text; empty for None."""
    values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return ", ".join(f"{float(x):g}" for x in values)


def _read_contract_groups(_: OptimizerState, folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Recorded settings by parameter name; none where the record does not name parameters."""
    groups = read_contract(folder).get("param_groups")
    sidecar = folder / SIDECAR
    lists: Any = read_names(sidecar) if groups and sidecar.is_file() else []
    if lists and isinstance(lists[0], str):
        lists = [lists]
    if not groups or len(lists) != len(groups):
        return {}
    return {name: group for part, group in zip(lists, groups, strict=True) for name in part}


def _read_last_rates(state: OptimizerState, folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """The last rate by parameter name."""
    rates, _ = read_schedule(folder)
    if len(rates) <= max(state.group_index.values()):
        return {}
    return {name: {"lr": rates[index]} for name, index in state.group_index.items()}


def read_schedule(folder: Path) -> tuple[list[float], list[float]]:
    """The rates of param groups by the schedule of a trainer, where its file can be read.

    Args:
        folder: The checkpoint.

    Returns:
        The last rates, and those that the schedule multiplies; empty where they are not known.
    """
    try:
        saved = read_torch(folder / SCHEDULER)
    except (FileError, FileNotFoundError):
        return [], []
    if not isinstance(saved, Mapping):
        return [], []
    last, base = (saved.get(key) or [] for key in ("_last_lr", "base_lrs"))
    return list(map(float, last)), list(map(float, base))
