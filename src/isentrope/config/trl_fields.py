"""Fields of TRL's configurations: their types, and the section `trainer`.

The work reads them of the classes, whose import takes seconds; before it they are read of the
sources, a class with its bases. What a source does not show is left to who imports the class.
"""

import ast
import builtins
import dataclasses
import math
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum, EnumMeta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from isentrope.checkpoint.infer.passed import RANGES
from isentrope.config.io import ConfigError
from isentrope.config.strict_yaml import brief

_HOMES = {"transformers": "transformers.training_args"}
"""Where a package defines what it exports and TRL's configurations inherit from."""
_TRACKERS = "transformers.integrations.integration_utils"
"""The module that has the table of trackers."""
_GRPO_TRAINER = "trl.trainer.grpo_trainer"
_UNREADABLE = (OSError, SyntaxError)


class _NotShownError(Exception):
    """A source is another than it is read as."""


def types_in_source(name: str) -> dict[str, Any] | None:
    """Fields that a configuration is made of, with their types.

    Args:
        name: The class, as package.module:name.

    Returns:
        The type of each field, Any where its source does not show it; None where the sources do not
        show the fields.
    """
    module, _, kind = name.partition(":")
    try:
        return _types_of(module, kind)
    except (_NotShownError, *_UNREADABLE):
        return None


def trackers_in_source() -> list[str] | None:
    """Names of the trackers that transformers knows; None where its source does not show them."""
    try:
        tree = _tree_of(_TRACKERS)
    except (_NotShownError, *_UNREADABLE):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            targets = [x.id for x in node.targets if isinstance(x, ast.Name)]
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            if targets == ["INTEGRATION_TO_CALLBACK"] and len(keys) == len(node.value.keys):
                return [str(key) for key in keys]
    return None


def choices_in_source(field: str) -> set[str]:
    """The texts that TRL's GRPO trainer compares a field with, one of which it has to be.

    Args:
        field: Of its configuration, such as "loss_type".

    Returns:
        The texts; none where the source does not show them.
    """
    try:
        tree = _tree_of(_GRPO_TRAINER)
    except (_NotShownError, *_UNREADABLE):
        return set()
    return {
        constant.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and getattr(node.left, "attr", None) == field
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }


def _types_of(module: str, name: str) -> dict[str, Any]:
    definition = _class_of(module, name)
    types: dict[str, Any] = {}
    for base in reversed(definition.bases):
        if not isinstance(base, ast.Name):
            raise _NotShownError
        types |= _types_of(*_home_of(module, base.id))
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
            if not field.startswith("_"):  # no parameters of the constructor
                types[field] = _type_of(module, node.annotation)
    return types


def _type_of(module: str, annotation: ast.expr) -> Any:
    """The type that an annotation names; Any where it names a class that is not read."""
    scope = vars(typing) | _enums_in(module, annotation)
    holder = type("Holder", (), {"__annotations__": {"field": ast.unparse(annotation)}})
    try:
        return typing.get_type_hints(holder, scope)["field"]
    except (NameError, TypeError, AttributeError):
        return Any


def _enums_in(module: str, annotation: ast.expr) -> dict[str, type[Enum]]:
    """The enumerations that an annotation names, by their members' values."""
    enums: dict[str, type[Enum]] = {}
    for name in [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]:
        if hasattr(builtins, name) or hasattr(typing, name):
            continue
        try:
            definition = _class_of(*_home_of(module, name))
        except (_NotShownError, *_UNREADABLE):
            continue
        bases = [ast.unparse(base) for base in definition.bases]
        values = {
            target.id: node.value.value
            for node in definition.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if values and any(base.endswith("Enum") for base in bases):
            kind: Any = Enum(name, values)
            enums[name] = kind
    return enums


def _class_of(module: str, name: str) -> ast.ClassDef:
    """The one definition of a class in a module."""
    body = _tree_of(module).body
    definitions = [x for x in body if isinstance(x, ast.ClassDef) and x.name == name]
    if len(definitions) != 1:
        raise _NotShownError
    return definitions[0]


def _home_of(module: str, name: str) -> tuple[str, str]:
    """The module that defines what another imports, and its name there."""
    for node in _tree_of(module).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                above = module.split(".")[: -node.level] if node.level else []
                home = ".".join([*above, *filter(None, [node.module])])
                return _HOMES.get(home, home), alias.name
    return module, name


@cache
def _tree_of(module: str) -> ast.Module:
    """The syntax tree of a module, of which nothing is imported."""
    package, *parts = module.split(".")
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        base = Path(place).joinpath(*parts)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_bytes())
    raise _NotShownError


def trainer_options(
    section: Mapping[str, Any], options_class: type, reserved: Mapping[str, str]
) -> dict[str, Any]:
    """Check what a `trainer` section passes to a configuration of TRL.

    Args:
        section: The section.
        options_class: The dataclass it goes to, GRPOConfig or SFTConfig.
        reserved: Fields that are set elsewhere, and where.

    Returns:
        A copy of the section.

    Raises:
        ConfigError: If a field is unknown, set elsewhere, plainly of another type or out of
            range.
    """
    hints = typing.get_type_hints(options_class)
    types = {f.name: hints[f.name] for f in dataclasses.fields(options_class) if f.init}
    require_fields(section, options_class.__name__, types, reserved)
    return dict(section)


def require_fields(
    section: Mapping[str, Any], kind: str, types: Mapping[str, Any], reserved: Mapping[str, str]
) -> None:
    """Refuse fields that a configuration of TRL does not have, and values that do not fit.

    Args:
        section: The section `trainer`.
        kind: Name of the configuration.
        types: Its fields and their types.
        reserved: Fields that are set elsewhere, and where.

    Raises:
        ConfigError: Naming the field.
    """
    for name, value in section.items():
        if name in reserved:
            raise ConfigError(f"trainer.{name} cannot be given there: {_reason(reserved[name])}.")
        if name not in types:
            nearest = _nearest_field(name, kind, types, reserved)
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


def _nearest_field(
    name: str, kind: str, types: Mapping[str, Any], reserved: Mapping[str, str]
) -> str:
    """The field that an unknown one was meant to be, and where it is set if not there."""
    nearest = get_close_matches(name, sorted(types), n=1, cutoff=0.0)[0]
    elsewhere = f", and {_reason(reserved[nearest])}" if nearest in reserved else ""
    return f"the nearest field of {kind} is {nearest!r}{elsewhere}"


def _choices(name: str, annotation: Any) -> list[str]:
    """The texts of which a field has to be one; none where any will do."""
    if name in ("loss_type", "importance_sampling_level"):  # texts, which the trainer compares
        return sorted(choices_in_source(name))
    kinds = [kind for kind in typing.get_args(annotation) if isinstance(kind, EnumMeta)]
    return sorted(str(member.value) for kind in kinds for member in cast(Any, kind))
