"""The contracts of a study: of runs that train alike, and of the base model that is measured.

Checkpoints of one run have one contract. Those of two runs may be measured together if the runs
agree in all that makes the measured step; where they do not, a curve over the checkpoints would
join two different steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isentrope.recording.contract import (
    read_contract,
)
from isentrope.runs.checkpoints import Checkpoint
from isentrope.runs.origin import changed_parts
from isentrope.system.checkpoint_folder import CONTRACT
from isentrope.trainers.fields import FIELDS
from isentrope.trainers.rules import Obstacle

_OF_THE_STEP = (
    *("objective", "plain_objective", "loss_type", "normaliser", "advantages", "control"),
    *("max_new_tokens", "eos_token_ids", "temperature", "max_grad_norm", "group_size"),
    "optimizer",
)
"""Entries of a contract that make the measured step."""

_ACTING = {name for name, field in FIELDS.items() if field.treatment != "harmless"}
"""Fields of the trainer that may change the step, beside those of the optimizer."""

_RATES = ("lr", "initial_lr")
"""Settings of a param group that a schedule changes along a run."""


def require_one_contract(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse checkpoints of runs whose configurations differ in what makes the measured step.

    Args:
        checkpoints: Of one study; those without a contract are not compared.

    Raises:
        ValueError: Naming two checkpoints and what differs.
    """
    first: Checkpoint | None = None
    settings: dict[str, Any] = {}
    for checkpoint in checkpoints:
        contract = _read(checkpoint.path)
        if contract is None:
            continue
        own = _settings(contract)
        if first is None:
            first, settings = checkpoint, own
        both = [key for key in settings if key in own and settings[key] != own[key]]
        if both:
            key = both[0]
            raise ValueError(
                f"The checkpoints {first.name} ({first.path}) and {checkpoint.name} "
                f"({checkpoint.path}) are of runs that trained differently: {key} was "
                f"{settings[key]!r} and {own[key]!r}. Measure them in studies of their own, each "
                "with its own --out, or set checkpoint.allow_mixed=true."
            )


def other_base(checkpoint: Path, made_from: Mapping[str, str]) -> list[Obstacle]:
    """Whether the base model under an adapter is another than training had.

    Returns:
        One obstacle, or none; none where the contract does not say.
    """
    recorded = (_read(checkpoint) or {}).get("made_from", {})
    changed = [part for part in changed_parts(recorded, made_from) if part.startswith("base ")]
    if not changed:
        return []
    words = f"the {' and '.join(changed)} under the adapter differ from training's ({CONTRACT})"
    return [Obstacle("base_model", words)]


def _settings(contract: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: contract[key] for key in _OF_THE_STEP if key in contract}
    if isinstance(groups := contract.get("param_groups"), list):
        plain = [{k: v for k, v in group.items() if k not in _RATES} for group in groups]
        found["param_groups"] = plain
    if isinstance(config := contract.get("config"), Mapping):
        given = config.get("trainer", {})
        found["trainer"] = {k: v for k, v in given.items() if k in _ACTING}
    return found


def _read(checkpoint: Path) -> dict[str, Any] | None:
    return read_contract(checkpoint) if (checkpoint / CONTRACT).is_file() else None
