"""What all results have in common: they are written to a folder, and read back from it.

    results.json      schema, header, what the verb found, warnings, timing
    <table>.parquet   `tables`; of a result that was loaded they are read when they are asked for

This is the only module that reads or writes results.json. Keys of the file are names of fields.

Errors of reading are one sentence. JSON holds neither NaN nor infinity, so both are written as
null, and null is NaN again wherever the type of a field wants a number. Where it may be None, null
is None.

The notes call changes deltaH: results.json has those names beside ours, and files of the first
version have them alone.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Self, TypeVar

import pandas as pd
from pydantic import (
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)

from isentrope.checkpoint.files import require_own_name
from isentrope.config.measure import repeat_of
from isentrope.results.header import Header
from isentrope.results.verbs import SCHEMAS, VERBS
from isentrope.system.errors import FileError, IsentropeError
from isentrope.system.file_contents import read_table
from isentrope.system.files import write_json
from isentrope.system.formatting import finite
from isentrope.system.manifest import verify
from isentrope.system.reading import read_json, reading

T = TypeVar("T")

CURE = "Run the command that made it again."

OF_THE_NOTES = {
    "deltaH_true": "delta_h",
    "deltaH_approx": "first_order",
    "deltaH_second": "second_order",
    "deltaH": "delta_h",
    "deltaJ": "delta_j",
}
"""Our names of what the notes call otherwise; the longer ones first."""


class ResultsError(IsentropeError, ValueError):
    """A results.json that cannot be read."""


def our_name(name: str) -> str:
    """The name that a column or key of the notes has here."""
    for theirs, ours in OF_THE_NOTES.items():
        name = name.replace(theirs, ours)
    return name


def also_as(*theirs: str) -> WrapSerializer:
    """Writes numbers under names of the notes too."""

    def write(content: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = handler(content)
        return written | {
            key.replace(OF_THE_NOTES[name], name): value
            for name in theirs
            for key, value in written.items()
            if OF_THE_NOTES[name] in key
        }

    return WrapSerializer(write)


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def encode(content: Any) -> dict[str, Any]:
    """The content of a file."""
    return finite(_adapter(type(content)).dump_python(content, by_alias=True))


def decode(kind: type[T], content: object, path: Path) -> T:
    """Read back what `encode` made; numbers are not made of texts, nor texts of numbers.

    Args:
        kind: The type of what was made.
        content: JSON as it was read.
        path: The file that holds it, for messages.

    Returns:
        The content.

    Raises:
        ResultsError: If a key is missing, or its value has another type.
    """
    with reading(path, CURE):  # content may be nested too deeply
        content = _with_our_names(content)
    try:
        try:
            return _adapter(kind).validate_json(json.dumps(content))
        except ValidationError as error:
            _put_nan(content, error)
            return _adapter(kind).validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "its content"
        what = "is missing" if first["type"] == "missing" else f"is wrong ({first['msg']})"
        raise ResultsError(f"{path}: {key} {what}. {CURE}") from error


def _with_our_names(content: Any) -> Any:
    if isinstance(content, list):
        return [_with_our_names(part) for part in content]
    if isinstance(content, dict):
        return {our_name(key): _with_our_names(part) for key, part in content.items()}
    return content


def _put_nan(content: Any, error: ValidationError) -> None:
    """Put NaN where a number is wanted and the file has null: pydantic says where that is."""
    for wrong in error.errors(include_url=False):
        if wrong["type"] == "float_type" and wrong["input"] is None:
            *path, last = wrong["loc"]
            reduce(getitem, path, content)[last] = math.nan


RESULTS = "results.json"


class Tables(Mapping[str, pd.DataFrame]):
    """The tables in a folder, by the names of their files; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self:
            raise KeyError(name)
        path, schema = self.folder / f"{name}.parquet", SCHEMAS[name]
        return read_table(path, CURE, schema=schema, today=our_name)

    def __contains__(self, name: object) -> bool:
        return name in SCHEMAS and (self.folder / f"{name}.parquet").is_file()

    def __iter__(self) -> Iterator[str]:
        return (name for name in sorted(SCHEMAS) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _nothing(*_: object) -> None:
    """Writes no other files."""


def _no_log(*_: object) -> list[Path]:
    """Writes no log."""
    return []


@dataclass(frozen=True, kw_only=True)
class Result(Header):
    """What a verb found at one checkpoint.

    Attributes:
        warnings: Sentences on what limits the use of the numbers.
        timing: Seconds by stage, and "total".
        tables: Written as parquet, by name.
        save_more: Writes whatever else there is into the folder.
        write_log: Called with the whole result and a folder for logs before its folder gets its
            name; returns the files that it wrote.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, arbitrary_types_allowed=True)
    verb: ClassVar[str] = ""

    warnings: tuple[str, ...] = ()
    timing: dict[str, FiniteFloat] = field(default_factory=dict)
    tables: Annotated[Mapping[str, pd.DataFrame], Field(exclude=True)] = field(
        default_factory=dict, compare=False, repr=False
    )
    save_more: Annotated[Callable[[Path], object], Field(exclude=True)] = field(
        default=_nothing, compare=False, repr=False
    )
    write_log: Annotated[Callable[[Any, Path], list[Path]], Field(exclude=True)] = field(
        default=_no_log, compare=False, repr=False
    )

    def __init_subclass__(cls) -> None:
        """A result is that of the verb that names its class."""
        named = (verb.name for verb in VERBS.values() if verb.result.endswith(f":{cls.__name__}"))
        cls.verb = next(named)

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json; null for NaN and infinity."""
        content = encode(self)
        last = {key: content.pop(key) for key in ("warnings", "timing", "provenance")}
        return {"schema": f"isentrope/{self.verb}/1", **content, **last}

    def save(self, folder: Path) -> None:
        """Write results.json, the tables, and whatever else there is."""
        write_json(folder / RESULTS, self.to_dict())
        for name, table in self.tables.items():
            table.to_parquet(folder / f"{name}.parquet")
        self.save_more(folder)

    def as_saved(self) -> Self:
        """What `load` makes of it, without the disk: infinite numbers are NaN, writers are gone."""
        loaded = decode(type(self), self.to_dict(), Path(RESULTS))
        return replace(loaded, tables=self.tables)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` of a result of this kind wrote; `Result` reads those of any verb.

        Returns:
            The result.

        Raises:
            ResultsError: If the file cannot be read, or is of another verb.
            FileError: If a file of the folder was changed after it was written, or it has the name
                of other results.
        """
        kinds: list[type[Self]] = [resolve_name(verb.result) for verb in VERBS.values()]
        known = {f"isentrope/{kind.verb}/1": kind for kind in kinds if issubclass(kind, cls)}
        verify(folder)
        path = folder / RESULTS
        try:
            content = read_json(path, CURE)
        except (FileNotFoundError, FileError) as error:
            raise ResultsError(str(error)) from error
        schema = str(content.get("schema"))
        if schema not in known:
            raise ResultsError(
                f"{path}: its schema is {schema!r}, and it should be {' or '.join(known)}."
            )
        result = replace(decode(known[schema], content, path), tables=Tables(folder))
        repeat = repeat_of(result.provenance.seeds)
        if folder.name.startswith(f"{result.verb}_") and repeat is not None:
            require_own_name(folder, f"{result.verb}_{item_name(result.policy.name, repeat)}")
        return result


def item_name(checkpoint: str, repeat: int) -> str:
    """What results of a checkpoint are called: step_40, or step_40_repeat_2."""
    return f"{checkpoint}_repeat_{repeat}" if repeat else checkpoint
