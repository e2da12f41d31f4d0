"""Configuration files: read, overridden, checked and written. Every complaint is one sentence."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.keys import FORMER, describe_error, inner_model
from isentrope.config.measure import MeasureConfig
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
        return _build("The configuration", content, overrides, root)
    content = located(read_yaml(Path(source)), Path(source).parent)
    return _build(str(source), content, overrides, root)


def load_any(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a configuration of whatever kind."""
    content = located(read_yaml(Path(path)), Path(path).parent)
    return _build(str(path), content, overrides, KINDS[kind_of(content)])


def _build(
    file: str, content: dict[str, Any], overrides: Iterable[str], root: type[_Root]
) -> _Root:
    """The configuration of what was read and the settings that win over it."""
    _require_kind(file, content, root)
    for key, former in FORMER.items():
        section, _, name = key.partition(".")
        values = content.get(section)
        if isinstance(values, Mapping) and (name, former.idle) in values.items():
            content[section] = _without(values, name)
    changes = [*overrides]
    for change in changes:
        section, _, name = key_of(change).partition(".")
        values = content.get(section)
        if name in OTHER_NAME and isinstance(values, Mapping):
            content[section] = _without(values, OTHER_NAME[name])
    for change in changes:
        _set_key(content, change)
    _require_no_secrets(content)
    try:
        return root.model_validate(content)
    except ValidationError as error:
        raise ConfigError(describe_error(error, root)) from error


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def kind_of(sections: Collection[str]) -> str:
    """Which verb a configuration of these sections is for; measure where no other one is named."""
    return next((verb for section, verb in _SECTIONS.items() if section in sections), "measure")


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
        model = inner_model(type(config), name) if comments else None
        if lines:
            lines.append("")
        lines.append(f"{name}:" if section else f"{name}: {{}}")
        if model is not None:
            lines[-1] += f"  # {(model.__doc__ or '').splitlines()[0]}"
        written = {key: value for key, value in section.items() if f"{name}.{key}" not in omit}
        blocks = [{key: value} for key, value in written.items()] if model else [written]
        for block in filter(None, blocks):  # without comments one block, which is quicker
            for key in block:
                description = model.model_fields[key].description if model else None
                lines += [f"  # {line}" for line in (description or "").splitlines()]
            lines += [f"  {line}" for line in dump(block).rstrip("\n").split("\n")]
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
        as_near = [verb for verb in KINDS if sections[verb] == sections[nearest]]
        raise ConfigError(
            f"{file} is written for {' or '.join(map(_name_readers, as_near))}: it has a section "
            f"{foreign[0]!r}. The sections of {_name_readers(reader)} are "
            f"{', '.join(_sections(root))}."
        )


def _name_readers(verb: str) -> str:
    """The commands that read the configuration of a verb."""
    suffix = " and the other measuring verbs" if verb == "measure" else ""
    return f"isentrope {verb}{suffix}"


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
