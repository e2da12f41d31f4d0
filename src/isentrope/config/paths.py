"""Paths in the config.yaml of a run: those inside the run's folder are relative to the file's own.

So a run that was copied or moved, or is resumed from another directory, finds its own files. In a
config.yaml that a run wrote, a relative path is looked for beside the file first, and then, as in
any other configuration, in the current directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from glob import escape, glob
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from isentrope.system.checkpoint_folder import CheckpointFolder
from isentrope.system.manifest import verification

PATHS = {
    "model": ("path",),
    "data": ("dataset_path",),
    "checkpoint": ("checkpoint_path", "optimizer_path", "base_model"),
    "batch_config": ("dataset_path", "U_dataset_path", "E_file", "U_file"),
}
"""Keys that hold paths, by section."""

Config = TypeVar("Config", bound=BaseModel)


def relative_to_run(config: Config, run: Path, folder: Path) -> Config:
    """A copy as it is written: paths inside the run are relative to the folder of the file."""

    def written(path: str) -> str:
        return path_in_run(path, run, folder) or path

    changed = _mapped(_sections(config), written)
    new = {name: getattr(config, name).model_copy(update=paths) for name, paths in changed.items()}
    return config.model_copy(update=new)


def path_in_run(path: str, run: Path, folder: Path) -> str | None:
    """A path inside a run relative to a folder of it; None for any other path, or a name."""
    where = Path(path).expanduser()
    inside = where.resolve().is_relative_to(run.resolve())
    if not inside or not (where.exists() or _is_pattern(path)):
        return None
    return Path(os.path.relpath(where.resolve(), folder.resolve())).as_posix()


def located(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The content of a run's config.yaml with paths that lead from the current directory."""
    if content.get("provenance") is None:
        return dict(content)

    def read(path: str) -> str:
        here = folder / path
        pattern = os.path.join(escape(str(folder)), path)
        found = glob(pattern) if _is_pattern(path) else here.exists()
        return os.path.normpath(here) if found else path

    new = {name: {**content[name], **paths} for name, paths in _mapped(content, read).items()}
    return {**content, **new}


def _sections(config: BaseModel) -> dict[str, Any]:
    return {name: vars(section) for name, section in config if name in PATHS}


def _mapped(
    content: Mapping[str, Any], change: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """The paths of each section, changed."""

    def each(value: Any) -> Any:
        if isinstance(value, list):
            return [each(item) for item in value]
        return change(value) if isinstance(value, str) and value else value

    return {
        name: {key: each(section[key]) for key in keys if key in section}
        for name, keys in PATHS.items()
        if isinstance(section := content.get(name), Mapping)
    }


def inputs_of(config: BaseModel) -> list[Path]:
    """What a configuration reads: its paths that are there, patterns expanded, and base models."""
    found: list[str] = []
    _mapped(_sections(config), found.append)
    return existing(found)


def existing(paths: Iterable[str]) -> list[Path]:
    """Paths that are there, patterns expanded, and the base model of each that is an adapter."""
    given = [
        path
        for text in paths
        for path in (map(Path, glob(text)) if _is_pattern(text) else [Path(text)])
        if path.expanduser().exists()
    ]
    with verification(False):
        bases = [
            CheckpointFolder(p).adapter.get("base_model_name_or_path") for p in given if p.is_dir()
        ]
    return given + [Path(base) for base in bases if isinstance(base, str)]


def _is_pattern(path: str) -> bool:
    return any(character in path for character in "*?[")
