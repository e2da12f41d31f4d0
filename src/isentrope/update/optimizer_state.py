"""A saved or live optimizer, read back by parameter name (T5).

The state of every parameter of θ is found by name, checked for completeness and shape, and
turned to float64. What does not fit is an error: a state is never replaced by a fresh one.
torch skips a parameter without a gradient, and keeps no state of it: a vision tower in training on
text. Beside others that have one it was not trained, and the step does not move it.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.checkpoint.files import require_own_states
from isentrope.models.checkpoint_folder import HOW_TO_CONVERT
from isentrope.parallel.sharded import first_false
from isentrope.policy.language_model import Policy
from isentrope.system.errors import FileError, IsentropeError
from isentrope.system.file_contents import read_torch
from isentrope.system.manifest import verify
from isentrope.system.memory import mapped_blocks
from isentrope.system.reading import read_json, reading
from isentrope.update.live_optimizer import bare_optimizer, require_torch_step
from isentrope.update.optimizer_rules import choose_rule, state_keys
from isentrope.update.parameter_names import (
    SIDECAR,
    Names,
    names_of_states,
    read_names,
)
from isentrope.update.saved_state import (
    PLAIN_STATE,
    MissingStateError,
    groups_and_states,
    read_moments,
    require_plausible,
    require_shape,
    select_moments,
)

OptimizerLike = str | Path | Mapping[str, Any] | torch.optim.Optimizer
"""A path to optimizer.pt (or to its folder), a state_dict, or a torch optimizer."""


@dataclass(frozen=True)
class OptimizerState:
    """What the next step of an optimizer depends on, by parameter name.

    Attributes:
        rule: "adamw", "adam", "sgd" or "rmsprop".
        groups: The hyper-parameters in force for each parameter of θ.
        moments: What the rule remembers of each parameter: tensors of its shape in float64, and
            `step`; empty for a fresh optimizer.
        learning_rate: η, the rate of the first param group that holds parameters.
        matched_by: How names were found: "names", "identity", "param_names", "sidecar", "order".
        warnings: Sentences on what limits the state's use.
        types: Type of each parameter's stored moments, which is that of the parameter in training;
            nothing for a parameter without moments.
        group_index: Which param group each parameter is in, from 0.
        untrained: Parameters without a state beside others that have one; the step leaves them.
    """

    rule: str
    groups: dict[str, Mapping[str, Any]]
    moments: dict[str, dict[str, Any]]
    learning_rate: float
    matched_by: str
    warnings: tuple[str, ...] = ()
    types: dict[str, torch.dtype] = field(default_factory=dict[str, torch.dtype])
    group_index: dict[str, int] = field(default_factory=dict[str, int])
    untrained: frozenset[str] = frozenset()

    @property
    def distinct_groups(self) -> list[dict[str, Any]]:
        """Settings of the param groups, the one of η first; `tensors` says how many hold them."""
        rows: dict[str, dict[str, Any]] = {}
        for group in self.groups.values():
            settings = {k: v for k, v in group.items() if k in GROUP_SETTINGS}
            rows.setdefault(repr(settings), settings | {"tensors": 0})["tensors"] += 1
        return sorted(rows.values(), key=lambda g: float(g["lr"]) != self.learning_rate)

    @property
    def without_momentum(self) -> OptimizerState:
        """The same state with β₁ = 0, or with SGD's and RMSprop's momentum 0."""

        def still(group: Mapping[str, Any]) -> dict[str, Any]:
            betas = {"betas": (0.0, group["betas"][1])} if "betas" in group else {"momentum": 0.0}
            return {**group, **betas}

        return replace(self, groups={name: still(g) for name, g in self.groups.items()})

    def require_still(self, gradient: Mapping[str, Tensor]) -> None:
        """Refuse a batch that has a gradient for a parameter which training gave none.

        Args:
            gradient: Of the loss, by parameter name.

        Raises:
            MissingStateError: Naming the first such parameter.
        """
        still = {name: ~gradient[name].any() for name in sorted(self.untrained)}
        if name := first_false(still):
            raise MissingStateError(
                f"The batch has a gradient for parameter {name!r}, of which the optimizer has no "
                "state beside others: it is incomplete, or training never used that parameter."
            )

    def rate_ratio(self, name: str) -> float:
        """The learning rate of a parameter's group over η; 1 where all rates are equal."""
        rate = float(self.groups[name]["lr"])
        return 1.0 if rate == self.learning_rate else rate / self.learning_rate


def load_optimizer_state(
    policy: Policy,
    optimizer: OptimizerLike,
    *,
    rule: str | None = None,
    names: Names | None = None,
) -> OptimizerState:
    """Read an optimizer and match its state to the policy's parameters.

    Args:
        policy: The policy whose θ the optimizer moves.
        optimizer: A path, a state_dict or a torch optimizer. An empty state is a fresh
            optimizer if it comes as an object or a state_dict. In a file it is an error, but for a
            checkpoint whose trainer_state.json says that it is of step 0.
        rule: "adamw", "adam", "sgd" or "rmsprop"; None infers it from the param groups.
        names: Names in the optimizer's order, flat or one list per group; None finds them.

    Returns:
        The state by name.

    Raises:
        FileNotFoundError: If the path has no optimizer state.
        ValueError: If names, counts, shapes, learning rates, the rule or the class do not fit.
        FileError: The same of a file, or if it holds something else.
        IsentropeError: As it is.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        require_torch_step(optimizer := bare_optimizer(optimizer))
        live = [p for group in optimizer.param_groups for p in group["params"]]
        return _match_by_name(policy, optimizer.state_dict(), rule, names, parameters=live)
    if not isinstance(optimizer, (str, Path)):
        return _match_by_name(policy, optimizer, rule, names)
    file = file_of(optimizer)
    with reading(file), mapped_blocks():
        try:
            saved, sidecar = _read_state(file)
            return _match_by_name(policy, saved, rule, names, sidecar=sidecar, file=file)
        except IsentropeError:
            raise
        except ValueError as error:
            raise FileError(f"{file}: {error}") from error


def before_first_step(file: Path) -> bool:
    """Whether a file is of a trainer's checkpoint before its first step.

    Args:
        file: Any file in the checkpoint's folder.

    Returns:
        True if trainer_state.json says so.
    """
    beside = file.with_name("trainer_state.json")
    return beside.is_file() and read_json(beside, finite=False).get("global_step") == 0


def _match_by_name(
    policy: Policy,
    saved: Any,
    rule: str | None,
    names: Names | None,
    *,
    parameters: list[nn.Parameter] | None = None,
    sidecar: Names | None = None,
    file: Path | None = None,
) -> OptimizerState:
    """The state of a state_dict; of live Parameters, beside a sidecar, or from a file."""
    groups, states = groups_and_states(saved)
    rule = choose_rule(groups, rule)
    for i, group in enumerate(groups):
        require_plausible(group, f"param group {i}")
    ordered, source = names_of_states(
        policy, groups, chosen=names, parameters=parameters, sidecar=sidecar
    )
    theta = dict(policy.model.named_parameters())
    for name, parameter in zip(ordered, parameters or (), strict=False):
        require_shape(theta, name, parameter, "the optimizer's parameter")
    places = [(k, index) for k, group in enumerate(groups) for index in group["params"]]
    by_name = dict(zip(ordered, places, strict=True))
    saved_states = {name: states.get(index) or {} for name, (_, index) in by_name.items()}
    group_index = {name: by_name[name][0] for name in policy.names}
    group_of = {name: groups[k] for name, k in group_index.items()}
    stateful = [name for name, group in group_of.items() if state_keys(rule, group)]
    fresh = bool(stateful) and not states
    if fresh and file is not None and not before_first_step(file):
        raise ValueError(
            f"{file} holds an empty optimizer state; if a fresh optimizer is meant, pass "
            "the state_dict itself."
        )
    if file is not None:
        _require_own_step(file.parent, saved_states)
    rate = float(next(group for group in groups if group["params"])["lr"])
    if rate == 0 and (moving := [n for n, group in group_of.items() if float(group["lr"]) != 0]):
        raise ValueError(
            "The first param group has learning rate 0, so no direction per unit of it exists, "
            f"while {moving[0]!r} has {float(group_of[moving[0]]['lr'])}."
        )
    untrained = [name for name in stateful if states and not saved_states[name]]
    no_moments = {name: dict[str, Any]() for name in group_of}
    state = OptimizerState(rule, group_of, no_moments, rate, source, group_index=group_index)
    if fresh:
        return replace(state, warnings=(_FRESH,))
    return _with_moments(state, saved_states, untrained, theta)


def _with_moments(
    state: OptimizerState,
    saved: Mapping[str, Mapping[str, Any]],
    untrained: list[str],
    theta: Mapping[str, Tensor],
) -> OptimizerState:
    """A state with the moments that were saved of each trained parameter, in float64."""
    groups = state.groups
    trained = {name: groups[name] for name in groups if name not in untrained}
    entries = select_moments(state.rule, trained, saved)
    notes: list[str] = []
    if untrained:
        notes.append(
            f"{len(untrained)} of {len(groups)} parameters, the first {untrained[0]!r}, have no "
            "state beside others: training gave them no gradient, and the step does not move them."
        )
    return replace(
        state,
        moments=state.moments | read_moments(entries, theta),
        warnings=tuple(notes),
        types={
            name: x.dtype
            for name, moments in entries.items()
            for key, x in reversed(moments.items())  # the first one counts
            if key != "step"
        },
        untrained=frozenset(untrained),
    )


GROUP_SETTINGS = (
    "lr",
    "weight_decay",
    "betas",
    "eps",
    "momentum",
    "dampening",
    "nesterov",
    "alpha",
)
"""What param groups may differ in."""
_FRESH = "The optimizer is fresh: its moments are zero and this is its first step."


def file_of(path: str | Path) -> Path:
    """The optimizer's file, given itself or by its folder."""
    return Path(path) / "optimizer.pt" if Path(path).is_dir() else Path(path)


def _read_state(file: Path) -> tuple[Any, Names | None]:
    """The saved state_dict, and the content of the sidecar or None."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no optimizer state at {file}.")
    verify(file.parent)
    sidecar = file.with_name(SIDECAR)
    names = read_names(sidecar) if sidecar.is_file() else None
    return read_torch(file, f"{PLAIN_STATE} {HOW_TO_CONVERT}"), names


def _require_own_step(checkpoint: Path, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a state of another step than the checkpoint that its file lies in."""
    steps = [float(state["step"]) for state in states.values() if "step" in state]
    if not steps:
        return
    file = checkpoint / "scheduler.pt"
    scheduled = None
    if max(steps) and file.is_file():
        with reading(file):
            scheduled = read_torch(file).get("last_epoch")
    require_own_states(checkpoint, max(steps), scheduled)
