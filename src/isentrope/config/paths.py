"""Paths in the configurations of runs.

In the config.yaml of a run, paths inside the run's folder are relative to the file's own. So a run
that was copied or moved, or is resumed from another directory, finds its own files. In a
config.yaml that a run wrote, a relative path is looked for beside the file first, and then, as in
any other configuration, in the current directory.
"""

import os
from collections.abc import Callable, Mapping
from glob import escape, glob
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.system.manifest import verification

PATHS = {
    "model": ("path",),
    "data": ("dataset_path",),
    "checkpoint": ("checkpoint_path", "optimizer_path", "base_model"),
    "batch_config": ("dataset_path", "U_dataset_path", "E_file", "U_file"),
}
"""Keys that hold paths, by section."""

_Config = TypeVar("_Config", bound=BaseModel)


def relative_to_run(config: _Config, run: Path, folder: Path) -> _Config:
    """A copy as it is written: paths inside the run are relative to the folder of the file."""

    def shorten(path: str) -> str:
        return path_in_run(path, run, folder) or path

    shortened = _map_paths(config.model_dump(include={*PATHS}), shorten)
    sections = {
        name: getattr(config, name).model_copy(update=paths) for name, paths in shortened.items()
    }
    return config.model_copy(update=sections)


def path_in_run(path: str, run: Path, folder: Path) -> str | None:
    """A path inside a run relative to a folder of it; None for any other path, or a name."""
    place = Path(path).expanduser()
    is_inside = place.resolve().is_relative_to(run.resolve())
    is_pattern = any(character in path for character in "*?[")
    if not is_inside or not (place.exists() or is_pattern):
        return None
    return Path(os.path.relpath(place.resolve(), folder.resolve())).as_posix()


def located(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The content of a run's config.yaml with paths that lead from the current directory."""
    if content.get("provenance") is None:
        return dict(content)

    def extend(path: str) -> str:
        matches = glob(os.path.join(escape(str(folder)), path))
        return os.path.normpath(folder / path) if matches else path

    extended = _map_paths(content, extend)
    sections = {name: {**content[name], **paths} for name, paths in extended.items()}
    return {**content, **sections}


def _map_paths(
    content: Mapping[str, Any], change: Callable[[str], object]
) -> dict[str, dict[str, Any]]:
    """The paths of each section, changed."""

    def change_all(value: Any) -> Any:
        if isinstance(value, list):
            return [change_all(item) for item in value]
        return change(value) if isinstance(value, str) and value else value

    return {
        name: {key: change_all(section[key]) for key in keys if key in section}
        for name, keys in PATHS.items()
        if isinstance(section := content.get(name), Mapping)
    }


def inputs_of(config: BaseModel) -> list[Path]:
    """What a configuration reads that is there: paths, patterns expanded, and bases of adapters."""
    paths: list[str] = []
    _map_paths(config.model_dump(include={*PATHS}), paths.append)
    matches = [Path(match) for path in paths for match in glob(os.path.expanduser(path))]
    with verification(False):
        bases = [
            CheckpointFolder(match).adapter.get("base_model_name_or_path")
            for match in matches
            if match.is_dir()
        ]
    return matches + [Path(base) for base in bases if isinstance(base, str)]
