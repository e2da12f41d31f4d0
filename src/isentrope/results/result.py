"""What all results have in common: they are written to a folder, and read back from it.

    results.json      schema, header, what the verb found, warnings, timing
    <table>.parquet   `tables`; of a result that was loaded they are read when they are asked for

This is the only module that reads or writes results.json. Keys of the file are names of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import pandas as pd
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter

from isentrope.config.measure import repeat_of
from isentrope.results.coding import CURE, ResultsError, decode, encode, our_name
from isentrope.results.columns import SCHEMAS
from isentrope.results.header import Header
from isentrope.system.errors import FileError
from isentrope.system.files import write_json
from isentrope.system.manifest import verify
from isentrope.system.reading import read_json, read_table
from isentrope.system.stated_steps import require_own_name

RESULTS = "results.json"


class Tables(Mapping[str, pd.DataFrame]):
    """The tables in a folder, by the names of their files; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self:
            raise KeyError(name)
        verify(self.folder)
        path, schema = self.folder / f"{name}.parquet", SCHEMAS[name]
        return read_table(path, CURE, schema=schema, today=our_name)

    def __contains__(self, name: object) -> bool:
        return name in SCHEMAS and (self.folder / f"{name}.parquet").is_file()

    def __iter__(self) -> Iterator[str]:
        return (name for name in sorted(SCHEMAS) if name in self)

    def __len__(self) -> int:
        return len(list(iter(self)))


def _nothing(*_: object) -> None:
    """Writes no other files."""


@dataclass(frozen=True, kw_only=True)
class Result(Header):
    """What a verb found at one checkpoint.

    Attributes:
        warnings: Sentences on what limits the use of the numbers.
        timing: Seconds by stage, and "total".
        tables: Written as parquet, by name.
        save_more: Writes whatever else there is into the folder.
        finish: Called with the whole result and a folder for logs, when its folder is complete.
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
    finish: Annotated[Callable[[Any, Path], object], Field(exclude=True)] = field(
        default=_nothing, compare=False, repr=False
    )

    def to_dict(self) -> dict[str, Any]:
        """The content of results.json; null for NaN and infinity."""
        content = encode(_adapter(type(self)), self)
        last = {key: content.pop(key) for key in ("warnings", "timing", "provenance")}
        return {"schema": f"isentrope/{self.verb}/1", **content, **last}

    def save(self, folder: Path) -> None:
        """Write results.json, the tables, and whatever else there is."""
        write_json(folder / RESULTS, self.to_dict())
        for name, table in self.tables.items():
            table.to_parquet(folder / f"{name}.parquet")
        self.save_more(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote, as `read_result` does."""
        return read_result(folder, cls)


R = TypeVar("R", bound=Result)


def read_result(folder: Path, *kinds: type[R]) -> R:
    """Read what a result of one of some kinds wrote.

    Returns:
        The result.

    Raises:
        ResultsError: If the file cannot be read, or is of another verb.
        FileError: If a file of the folder was changed after it was written, or it has the name of
            other results.
    """
    path, known = folder / RESULTS, {f"isentrope/{kind.verb}/1": kind for kind in kinds}
    verify(folder)
    try:
        content = read_json(path, CURE)
    except (FileNotFoundError, FileError) as error:
        raise ResultsError(str(error)) from error
    schema = str(content.get("schema"))
    if schema not in known:
        raise ResultsError(
            f"{path}: its schema is {schema!r}, and it should be {' or '.join(known)}."
        )
    result = replace(decode(_adapter(known[schema]), content, path), tables=Tables(folder))
    repeat = repeat_of(result.provenance.seeds)
    if folder.name.startswith(f"{result.verb}_") and repeat is not None:
        require_own_name(folder, f"{result.verb}_{item_name(result.policy.name, repeat)}")
    return result


def item_name(checkpoint: str, repeat: int) -> str:
    """What results of a checkpoint are called: step_40, or step_40_repeat_2."""
    return f"{checkpoint}_repeat_{repeat}" if repeat else checkpoint


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
