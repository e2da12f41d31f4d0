"""What a checkpoint says of its training: the settings that its next step is made of.

Read from the first file that has a setting: `contract.json` of `isentrope train`, then
`training_args.bin` of TRL and transformers (`saved_arguments`), then `trainer_state.json` where a
script wrote such keys there. What the step lacks beside those settings (a KL term, filtered
sampling, a stale batch) is a list of obstacles, which depends on how the step is computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.recording.contract import CONTRACT
from isentrope.training.saved_arguments import (
    TRAINING_ARGS,
    SavedArguments,
    read_training_arguments,
)
from isentrope.training.settings_rules import Obstacle, Use, notes_of, obstacles_of, trainer_of
from isentrope.update.objective import OBJECTIVES, SFT

TRAINER_STATE = "trainer_state.json"

_NAMES = {
    "temperature": "sampling.temperature",
    "max_new_tokens": "sampling.max_new_tokens",
    "max_grad_norm": "estimator.max_grad_norm",
    "objective": "estimator.objective",
    "advantages": "estimator.advantages",
    "clip": "estimator.clip",
    "group_size": "batch_config.G",
}
"""Keys of a contract, and of the configuration."""

_SCALED = {"group": "grpo", True: "grpo", "none": "dr_grpo", False: "dr_grpo"}
"""Advantages by TRL's scale_rewards."""


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of training that a checkpoint's files name.

    Attributes:
        keys: Value by key of the configuration, such as "sampling.temperature".
        sources: Name of the file that each key was read from.
        replayable: False where the contract says that recorded weights do not replay the step.
        arguments: The trainer's own arguments, where the checkpoint has them.
        uncontrolled: The objective without the run's control, where it has one and the objective
            has a name.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    replayable: bool = True
    arguments: SavedArguments | None = None
    uncontrolled: str | None = None

    def obstacles(self, use: Use) -> list[Obstacle]:
        """What training's step has and the one computed has not.

        Args:
            use: How the step is to be computed.

        Returns:
            One obstacle per field.
        """
        found = []
        if not self.replayable:
            words = f"{CONTRACT} says that its steps cannot be replayed (replayable is false)"
            found.append(Obstacle("replayable", words))
        return found + ([] if self.arguments is None else obstacles_of(self.arguments, use))

    def notes(self, use: Use) -> list[str]:
        """Sentences on what makes training's step differ a little, or what is not known of it.

        Args:
            use: How the step is to be computed.

        Returns:
            Sentences for a result's warnings.
        """
        return [] if self.arguments is None else notes_of(self.arguments, use)


def read_training_settings(checkpoint: Path, *, without_control: bool = False) -> TrainingSettings:
    """Read what a checkpoint says of its training.

    Args:
        checkpoint: Its folder.
        without_control: Whether the objective is to be the one without the run's control, which
            the contract must name.

    Returns:
        The settings; empty where no file names any.
    """
    keys: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def add(found: Mapping[str, Any], source: str) -> None:
        for key, value in found.items():
            if key not in keys:
                keys[key], sources[key] = value, source

    contract = _json(checkpoint / CONTRACT)
    uncontrolled = _uncontrolled(contract)
    if without_control:
        contract["objective"] = uncontrolled
    add(_of_contract(contract), CONTRACT)
    arguments = None
    if (path := checkpoint / TRAINING_ARGS).is_file():
        arguments = read_training_arguments(path)
        add(_of_arguments(arguments, keys.get("estimator.objective")), TRAINING_ARGS)
    add(_of_contract(_json(checkpoint / TRAINER_STATE)), TRAINER_STATE)
    replayable = contract.get("replayable", True)
    return TrainingSettings(keys, sources, replayable, arguments, uncontrolled)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): restore it, or remove it.") from error
    return content if isinstance(content, dict) else {}


def _uncontrolled(contract: Mapping[str, Any]) -> str | None:
    plain = contract.get("plain_objective")
    return plain if contract.get("control") and plain in OBJECTIVES else None


def _of_contract(contract: Mapping[str, Any]) -> dict[str, Any]:
    found = {_NAMES[name]: contract[name] for name in _NAMES if name in contract}
    if contract.get("objective") == "dr_grpo" and "max_new_tokens" in contract:
        found["estimator.max_response_length"] = contract["max_new_tokens"]
    return found


def _of_arguments(arguments: SavedArguments, objective: str | None) -> dict[str, Any]:
    """Keys of the configuration, from the arguments of a trainer.

    Args:
        arguments: Of the trainer.
        objective: What a contract beside it calls the loss.

    Returns:
        Value by key.
    """
    a, trainer = arguments.fields, trainer_of(arguments)
    found: dict[str, Any] = {"estimator.max_grad_norm": a.get("max_grad_norm") or None}
    if trainer == "sft":
        return found | {"estimator.objective": SFT, "sampling.temperature": 1.0}
    if trainer == "other":
        return found
    loss = objective or ("rloo" if trainer == "rloo" else a.get("loss_type", "grpo"))
    found["sampling.temperature"] = a.get("temperature")
    found["sampling.max_new_tokens"] = a.get("max_completion_length")
    found["batch_config.G"] = a.get("num_generations")
    low = a.get("epsilon")
    high = low if a.get("epsilon_high") is None else a["epsilon_high"]
    found["estimator.clip"] = None if low is None else (min(low, 1.0), high)
    scaled = _SCALED.get(a.get("scale_rewards", "group"))
    found["estimator.advantages"] = "rloo" if trainer == "rloo" else scaled
    if loss in OBJECTIVES:
        found["estimator.objective"] = loss
    if loss == "dr_grpo":
        found["estimator.max_response_length"] = a.get("max_completion_length")
    if loss == "bnpo" and (arguments.processes > 1 or a.get("gradient_accumulation_steps", 1) > 1):
        found["estimator.micro_batch"] = a.get("per_device_train_batch_size")
    nothing = {"estimator.max_grad_norm"}  # whose null is a value
    return {key: value for key, value in found.items() if value is not None or key in nothing}
