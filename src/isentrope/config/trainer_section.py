"""The section `trainer`: fields of a configuration of TRL, by name, if they are of its types."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from enum import EnumMeta
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from isentrope.checkpoint.infer.passed import RANGES
from isentrope.config.io import ConfigError
from isentrope.config.strict_yaml import brief
from isentrope.config.trl_source import choices_in_source


def trainer_options(
    section: Mapping[str, Any], options_class: type, taken: Mapping[str, str]
) -> dict[str, Any]:
    """Check what a `trainer` section passes to a configuration of TRL.

    Args:
        section: The section.
        options_class: The dataclass it goes to, GRPOConfig or SFTConfig.
        taken: Fields that are set elsewhere, and where.

    Returns:
        A copy of the section.

    Raises:
        ConfigError: If a field is unknown, set elsewhere, plainly of another type or out of
            range.
    """
    hints = typing.get_type_hints(options_class)
    types = {f.name: hints[f.name] for f in dataclasses.fields(options_class) if f.init}
    require_fields(section, options_class.__name__, types, taken)
    return dict(section)


def require_fields(
    section: Mapping[str, Any], kind: str, types: Mapping[str, Any], taken: Mapping[str, str]
) -> None:
    """Refuse fields that a configuration of TRL does not have, and values that do not fit.

    Args:
        section: The section `trainer`.
        kind: Name of the configuration.
        types: Its fields and their types.
        taken: Fields that are set elsewhere, and where.

    Raises:
        ConfigError: Naming the field.
    """
    for name, value in section.items():
        if name in taken:
            raise ConfigError(f"trainer.{name} cannot be given there: {_reason(taken[name])}.")
        if name not in types:
            nearest = _nearest_field(name, kind, types, taken)
            raise ConfigError(f"Unknown key 'trainer.{name}': {nearest}.")
        try:
            TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(
                f"trainer.{name}: {brief(value)} does not fit {kind} ({error.errors()[0]['msg']})."
            ) from error
        choices = _choices(name, types[name])
        if isinstance(value, str) and choices and value not in choices:
            nearest = get_close_matches(value, choices, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"trainer.{name}: {brief(value)} is none of the {len(choices)} that {kind} knows: "
                f"the nearest is {nearest!r}."
            )
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise ConfigError(
                f"trainer.{name}: should be from {low:.12g} to {high:.12g}, got {brief(value)}."
            )


def _reason(cause: str) -> str:
    """Why a field is not passed through, from the entry of `managed_fields`."""
    _, by_nothing, words = cause.rpartition("nothing: ")
    return words if by_nothing else f"it is set by {words}"


def _nearest_field(name: str, kind: str, types: Mapping[str, Any], taken: Mapping[str, str]) -> str:
    """The field that an unknown one was meant to be, and where it is set if not there."""
    nearest = get_close_matches(name, sorted(types), n=1, cutoff=0.0)[0]
    elsewhere = f", and {_reason(taken[nearest])}" if nearest in taken else ""
    return f"the nearest field of {kind} is {nearest!r}{elsewhere}"


def _choices(name: str, annotation: Any) -> list[str]:
    """The texts of which a field has to be one; none where any will do."""
    if name in ("loss_type", "importance_sampling_level"):  # texts, which the trainer compares
        return sorted(choices_in_source(name))
    kinds = [kind for kind in typing.get_args(annotation) if isinstance(kind, EnumMeta)]
    return sorted(str(member.value) for kind in kinds for member in cast(Any, kind))
