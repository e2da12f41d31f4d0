"""Types of values that several sections share, and paths of a run's config.yaml.

Types are strict: true and "3" are not numbers, and 3.0 is not a count.

In the config.yaml of a run, paths inside the run's folder are relative to the file's own. So a run
that was copied or moved, or is resumed from another directory, finds its own files. In a
config.yaml that a run wrote, a relative path is looked for beside the file first, and then, as in
any other configuration, in the current directory.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from isentrope.checkpoint.files import CheckpointFolder
from isentrope.system.manifest import verification

PATHS = {
    "model": ("path",),
    "data": ("dataset_path",),
    "checkpoint": ("checkpoint_path", "optimizer_path", "base_model"),
    "batch_config": ("dataset_path", "U_dataset_path", "E_file", "U_file"),
}
"""Keys that hold paths, by section."""

T = TypeVar("T")
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
    is_pattern = any(character in path for character in "*?[")
    if not inside or not (where.exists() or is_pattern):
        return None
    return Path(os.path.relpath(where.resolve(), folder.resolve())).as_posix()


def located(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The content of a run's config.yaml with paths that lead from the current directory."""
    if content.get("provenance") is None:
        return dict(content)

    def read(path: str) -> str:
        found = glob(os.path.join(escape(str(folder)), path))
        return os.path.normpath(folder / path) if found else path

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
    given = [Path(path) for text in paths for path in glob(os.path.expanduser(text))]
    with verification(False):
        bases = [
            CheckpointFolder(p).adapter.get("base_model_name_or_path") for p in given if p.is_dir()
        ]
    return given + [Path(base) for base in bases if isinstance(base, str)]


LARGEST_COUNT = 2**31 - 1
MOST_TIMES = 10**6
MOST_SEQUENCES = 10**7
MOST_REPEATS = 1000
LARGEST_SEED = 2**32 - 1
LARGEST_REAL = 1e12
LARGEST_SETTING = 2.0**63


def _text(value: str) -> str:
    if re.search("[\x00\ud800-\udfff]", value):
        raise ValueError("a text must not have a NUL character, nor half a character (a surrogate)")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("a name or a path must not be empty or blank")
    return _text(value)


def _file_name(value: str) -> str:
    if value in (".", "..") or any(mark in value for mark in ("/", "\\")):
        raise ValueError(
            f"{value[:80]!r} is not a name in a folder: leave out /, \\ and .., or set the folder "
            "by output.directory"
        )
    if len(value.encode()) > 200:
        raise ValueError("a name of a file or folder has at most 200 bytes")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value[:80]!r} is no regular expression: {error}") from error
    return value


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, got {value}")
    return value


class _Int(int):
    text: str


class _Float(float):
    text: str


def written(text: str) -> int | float:
    """The number that a text spells; it keeps its spelling, for where a text is due."""
    number = (_Int if text.lstrip("+-").isdecimal() else _Float)(text)
    number.text = text
    return number


def spelling(value: Any) -> Any:
    """The text of a number that was read without quotes; any other value as it is."""
    return value.text if isinstance(value, (_Int, _Float)) else value


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""A number by its exponent, which PyYAML leaves a text where it has no dot or no sign."""


def as_written(content: Any) -> Any:
    """Content of PyYAML, with numbers for texts such as 1e-5."""
    if isinstance(content, Mapping):
        return {key: as_written(value) for key, value in content.items()}
    if isinstance(content, list):
        return [as_written(value) for value in content]
    number = isinstance(content, str) and _EXPONENT.fullmatch(content)
    return written(content) if number else content


def _plain(value: Any) -> Any:
    """A value, or all those in a dictionary or list, with numbers that have no spelling."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (int, float)) and not abs(value) < LARGEST_SETTING:
        raise ValueError("should be a finite number of at most 63 bits")
    if isinstance(value, (_Int, _Float)):
        return int(value) if isinstance(value, int) else float(value)
    return value


def too_many(**counts: int) -> tuple[bool, str]:
    """Whether counts multiply to more sequences than a batch may have, and the refusal."""
    factors = " times ".join(f"{name}={count}" for name, count in counts.items())
    words = f"{factors} are more than {MOST_SEQUENCES} sequences: make one of them smaller"
    return math.prod(counts.values()) > MOST_SEQUENCES, words


NonEmpty = Annotated[list[T], Field(min_length=1)]
Settings = Annotated[dict[str, Any], BeforeValidator(_plain)]
"""Values of any kind, by name."""

Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Times = Annotated[int, Field(ge=1, le=MOST_TIMES)]
"""How often something is done: each one is work. A `Count` is a size, or a limit to one."""
NoneOrMore = Annotated[int, Field(ge=0, le=MOST_TIMES)]
Several = Annotated[int, Field(ge=2, le=MOST_TIMES)]
Repeats = Annotated[int, Field(ge=1, le=MOST_REPEATS)]
"""Whole measurements; more are made from another `first_repeat`."""
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Order = Annotated[Literal[0, 1, 2], BeforeValidator(_no_truth_value)]

Real = Annotated[float, Field(ge=-LARGEST_REAL, le=LARGEST_REAL)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_REAL)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_REAL)]
Rate = Annotated[float, Field(gt=0, le=1e9)]
"""A learning rate."""
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
Share = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

Text = Annotated[str, BeforeValidator(spelling), AfterValidator(_text)]
Name = PathText = Annotated[str, BeforeValidator(spelling), AfterValidator(_not_blank)]
"""A name, or a path, or a name on the model hub."""
Pattern = Annotated[Name, AfterValidator(_pattern)]
FileName = Annotated[Name, AfterValidator(_file_name)]
"""The name of a file or folder, which cannot leave the folder that it is in."""
