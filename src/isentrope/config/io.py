"""Configuration files: read, overridden, checked and written. Every complaint is one sentence."""

import types
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import ELSEWHERE, MeasureConfig
from isentrope.config.paths import located
from isentrope.config.stages import OTHER_NAME
from isentrope.config.strict_yaml import (
    FIRST_LINE,
    LAST_LINE,
    ConfigError,
    as_written,
    brief,
    dump,
    parse,
    shortened,
    yaml_text,
)
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.system.secrets import secrets_in

_Root = TypeVar("_Root", bound=BaseModel)

Config = MeasureConfig | EvaluateConfig | SftConfig | TrainConfig

KINDS: dict[str, type[Config]] = {
    "measure": MeasureConfig,
    "evaluate": EvaluateConfig,
    "sft": SftConfig,
    "train": TrainConfig,
}
"""Configurations by the verb that reads them. Those of `measure` are of all measuring verbs."""

_SECTIONS = {"evaluation": "evaluate", "training": "train", "fine_tuning": "sft"}
"""Sections that one verb alone has."""


@dataclass(frozen=True)
class FormerKey:
    """A key that earlier versions had.

    Attributes:
        now: What does its work now, the end of a sentence on it.
        idle: Its value that did nothing, which is read as if the key were not there.
    """

    now: str
    idle: Any


FORMER = {
    "analysis.momentum_steps": FormerKey(
        "momentum is attributed to past updates by python -m studies.past_updates, in a clone", 0
    ),
    "analysis.passes": FormerKey("it is called analysis.gradient_backend now", "hooks"),
    "fisher_kernel.sketch": FormerKey(
        "gradients are sketched from Python alone, by ise.fisher_kernel(…, sketch=ise.Sketch(32)); "
        "here fisher_kernel.storage and fisher_kernel.memory_gb save memory",
        None,
    ),
}
"""Every key that is gone, by its dotted name."""


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    root: type[_Root] = MeasureConfig,
) -> _Root:
    """Read a configuration.

    Args:
        source: A YAML file, or its content as a dictionary. Relative paths in the config.yaml of a
            run are looked for beside it first (`config.paths`).
        overrides: Settings that win, each "section.key=value" with the value in YAML.
        root: Which configuration: `MeasureConfig`, or that of another verb.

    Returns:
        The configuration, defaults filled in.

    Raises:
        ConfigError: In one sentence, naming the key and the nearest valid one; or if a value is a
            secret, which does not belong in a file that is written into run folders.
    """
    if isinstance(source, Mapping):
        content = {k: v if k == "provenance" else as_written(v) for k, v in source.items()}
    else:
        content = located(read_yaml(Path(source)), Path(source).parent)
    file = "The configuration" if isinstance(source, Mapping) else str(source)
    _require_kind(file, content, root)
    for (section, _, name), former in ((key.partition("."), x) for key, x in FORMER.items()):
        values = content.get(section)
        if isinstance(values, Mapping) and (name, former.idle) in values.items():
            content[section] = {key: value for key, value in values.items() if key != name}
    changes = [*overrides]
    for section, _, key in (key_of(change).partition(".") for change in changes):
        if key in OTHER_NAME and isinstance(values := content.get(section), Mapping):
            content[section] = {k: x for k, x in values.items() if k != OTHER_NAME[key]}
    for change in changes:
        _set_key(content, change)
    _require_no_secrets(content)
    try:
        return root.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_describe_error(error, root)) from error


def kind_of(sections: Collection[str]) -> str:
    """Which verb a configuration of these sections is for; measure where no other one is named."""
    return next((verb for section, verb in _SECTIONS.items() if section in sections), "measure")


def load_any(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a configuration of whatever kind."""
    return load_config(path, overrides, KINDS[kind_of(read_yaml(Path(path)))])


def default_config(verb: str, overrides: Iterable[str] = ()) -> Config:
    """The defaults of a verb, with a path to fill in."""
    root = KINDS[verb]
    content = {"model": {"path": "path/to/model"}}
    if "checkpoint" in root.model_fields:
        content = {"checkpoint": {"checkpoint_path": "path/to/checkpoint"}}
    return load_config(content, overrides, root)


def dump_config(config: BaseModel, *, comments: bool = False, omit: Collection[str] = ()) -> str:
    """Write a configuration as YAML that `load_config` reads back equal, or finds to be cut."""
    lines: list[str] = []
    content = config.model_dump()
    _require_no_secrets(content)
    for name, section in content.items():
        if section is None:
            continue
        model = _inner_model(type(config), name)
        if lines:
            lines.append("")
        lines.append(f"{name}:" if section else f"{name}: {{}}")
        if comments and model is not None:
            lines[-1] += f"  # {(model.__doc__ or '').splitlines()[0]}"
        for key, value in section.items():
            if f"{name}.{key}" in omit:
                continue
            description = model.model_fields[key].description if comments and model else None
            if description:
                lines += [f"  # {line}" for line in description.splitlines()]
            lines += [f"  {line}" for line in dump({key: value}).rstrip("\n").split("\n")]
    return "\n".join([FIRST_LINE, *lines, LAST_LINE]) + "\n"


def dump_chosen(config: BaseModel) -> str:
    """Write what a configuration itself sets as YAML; what it leaves out stays training's."""
    content = config.model_dump(exclude_unset=True)
    _require_no_secrets(content)
    return dump(content)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the sections of a configuration file, unchecked.

    Returns:
        Its content.

    Raises:
        ConfigError: If it is not there, was cut, or is not a mapping in strict YAML.
    """
    content = parse(yaml_text(path), str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no sections: it must be a YAML mapping.")
    return content


def _require_kind(file: str, content: Mapping[str, Any], root: type[BaseModel]) -> None:
    """Refuse a file whose sections are those of another kind of configuration."""
    reader = next((verb for verb, kind in KINDS.items() if kind is root), None)
    if reader is None:
        return
    sections = {verb: set(content) & set(kind.model_fields) for verb, kind in KINDS.items()}
    nearest = max(KINDS, key=lambda verb: (len(sections[verb]), verb == reader))
    foreign = sorted(sections[nearest] - sections[reader])
    if nearest != reader and foreign:
        raise ConfigError(
            f"{file} is written for {_name_readers(nearest)}: it has a section {foreign[0]!r}. "
            f"{_name_readers(reader)} reads the sections {', '.join(_sections(root))}."
        )


def _name_readers(verb: str) -> str:
    """The commands that read the configuration of a verb."""
    others = " and the other measuring verbs" if verb == "measure" else ""
    return f"isentrope {verb}{others}"


def _sections(root: type[BaseModel]) -> list[str]:
    return [name for name in root.model_fields if name != "provenance"]


def _require_no_secrets(content: Mapping[str, Any]) -> None:
    """Refuse secrets, because all that is read here is written into run folders."""
    if secret := next(secrets_in(content), None):
        raise ConfigError(
            f"{secret} is a secret, and configurations are written into run folders: leave it out, "
            "and log in by `hf auth login` or the environment (HF_TOKEN, WANDB_API_KEY)."
        )


def key_of(override: str) -> str:
    """The dotted key that "section.key=value" sets."""
    return override.partition("=")[0].strip()


def _set_key(content: dict[str, Any], override: str) -> None:
    """Set a key in the content of a configuration."""
    dotted, equals, value = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {brief(override)} is not of the form section.key=value.")
    for key in keys[:-1]:
        inner = content.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(f"--set {brief(override)}: {key!r} is a value, not a section.")
        content[key] = dict(inner or {})
        content = content[key]
    content[keys[-1]] = parse(value, f"--set {override!r}")


def _describe_error(error: ValidationError, root: type[BaseModel]) -> str:
    """The first complaint, an unknown key before others, as one sentence."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = shortened(".".join(map(str, _strip_union_parts(first["loc"], root))))
    if first["type"] == "extra_forbidden":
        nearest = _find_nearest_key(path, root)
        apart = f" ({nearest.replace('.', ': {')}: …}})" if nearest == path else ""
        sentence = f"Unknown key {path!r}: the nearest valid key is {nearest!r}{apart}"
        if path in FORMER:
            sentence = f"{path!r} is a key of earlier versions: {FORMER[path].now}"
        elif first["loc"][-1] in ELSEWHERE:
            sentence = f"Unknown key {path!r}: docs/from_notes.md says what does its work here"
    elif first["type"] == "missing":
        sentence = f"The configuration needs {path!r}"
    elif first["type"] == "value_error":
        words = shortened(first["msg"].removeprefix("Value error, "), 500)
        sentence = f"{path}: {words}".removeprefix(": ")
    else:
        words = first["msg"].removeprefix("Input ")
        sentence = f"{path}: {words}, got {brief(first['input'])}"
    return f"{sentence.rstrip('.')}."


def _strip_union_parts(loc: tuple[int | str, ...], root: type[BaseModel]) -> list[int | str]:
    """The keys of a location, without the names that pydantic adds for the parts of a union."""
    model: type[BaseModel] | None = root
    keys: list[int | str] = []
    for key in loc:
        if model is None and isinstance(key, str):
            break
        keys.append(key)
        model = None if model is None else _inner_model(model, key)
    return keys


def _find_nearest_key(path: str, root: type[BaseModel]) -> str:
    """The valid key most like an unknown one, in its last part before all."""
    unknown = path.lower()
    unknown_end = unknown.split(".")[-1]

    def likeness(key: str) -> float:
        valid = key.lower()
        ends = SequenceMatcher(None, valid.split(".")[-1], unknown_end).ratio()
        return SequenceMatcher(None, valid, unknown).ratio() + 2 * ends

    return max(all_keys(root), key=likeness)


def all_keys(model: type[BaseModel] = MeasureConfig, prefix: str = "") -> list[str]:
    """Every key that may be set, sections too, in the order of `isentrope config show`."""
    keys = []
    for name in model.model_fields:
        keys.append(prefix + name)
        inner = _inner_model(model, name)
        keys += [] if inner is None else all_keys(inner, f"{prefix}{name}.")
    return [key for key in keys if key != "provenance"]


def _inner_model(model: type[BaseModel], name: int | str) -> type[BaseModel] | None:
    """The section that a key holds, or None if it holds a value."""
    field = model.model_fields.get(str(name))
    kind = field.annotation if field else None
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
