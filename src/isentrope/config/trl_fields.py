"""Fields of TRL's configuration that a `trainer` section passes through, by name and type."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from isentrope.config.io import ConfigError
from isentrope.config.strict_yaml import brief
from isentrope.config.train import ModelConfig
from isentrope.system.processes import world_size
from isentrope.trainers.passed import RANGES, SHARDING


def shards_weights(fields: Mapping[str, Any]) -> bool:
    """Whether a `trainer` section, or accelerate's launcher, shards the weights."""
    launched = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    given = any(fields.get(name) for name in SHARDING)
    return given or any(os.environ.get(name, "").lower() in ("1", "true") for name in launched)


def require_spreadable(model: ModelConfig, fields: Mapping[str, Any]) -> None:
    """Refuse to spread a base where that is not possible, before anything is loaded.

    Args:
        model: The section `model`.
        fields: The section `trainer`.

    Raises:
        ConfigError: If there is one process, no adapter, or another sharding, or vLLM samples.
    """
    causes = {
        "spreads the base over several processes, and there is one: start the command by torchrun "
        "--nproc_per_node N": world_size() == 1,
        "needs an adapter: set model.lora_rank": model.lora_rank == 0,
        "does not go with FSDP or DeepSpeed: choose one": shards_weights(fields),
        "does not go with trainer.use_vllm: choose one": bool(fields.get("use_vllm")),
    }
    for cause, found in causes.items():
        if model.shard_base and found:
            raise ConfigError(f"model.shard_base {cause}.")


def trainer_options(
    given: Mapping[str, Any], kind: type, taken: Mapping[str, str]
) -> dict[str, Any]:
    """Check what a `trainer` section passes to a configuration of TRL.

    Args:
        given: The section.
        kind: The dataclass it goes to, GRPOConfig or SFTConfig.
        taken: Fields that are set elsewhere, and where.

    Returns:
        A copy of the section.

    Raises:
        ConfigError: If a field is unknown, set elsewhere, plainly of another type or out of
            range.
    """
    kinds = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    for name, value in given.items():
        if name in taken:
            by, why = taken[name], taken[name].removeprefix("nothing: ")
            reason = why if why != by else f"it is set by {by}"
            raise ConfigError(f"trainer.{name} cannot be given there: {reason}.")
        if name not in fields:
            near = get_close_matches(name, sorted(fields - set(taken)), n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"Unknown key 'trainer.{name}': the nearest field of {kind.__name__} is {near!r}."
            )
        try:
            TypeAdapter(kinds[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(
                f"trainer.{name}: {brief(value)} does not fit {kind.__name__} "
                f"({error.errors()[0]['msg']})."
            ) from error
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise ConfigError(
                f"trainer.{name}: should be from {low:.12g} to {high:.12g}, got {brief(value)}."
            )
    return dict(given)
