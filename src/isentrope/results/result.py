"""What all results have in common: they are written to a folder, and read back from it.

    results.json      schema, header, what the verb found, warnings, timing
    <table>.parquet   `tables`; of a result that was loaded they are read when they are asked for

This is the only module that reads or writes results.json. Keys of the file are names of fields.

How their content lies there is said in `results.encode`. Errors of reading are one sentence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Self

import pandas as pd
from pydantic import ConfigDict, Field, FiniteFloat

from isentrope.checkpoint.files import require_own_name
from isentrope.config.measure import repeat_of
from isentrope.nouns.tables import table_schema
from isentrope.results.answers.blocks import Printed, Sentence, Table
from isentrope.results.decode import CURE, ResultsError, decode
from isentrope.results.encode import encode
from isentrope.results.header import Header
from isentrope.results.names_of_notes import our_name
from isentrope.results.tables import ROWS
from isentrope.results.verbs import RESULTS, VERBS, Verb
from isentrope.system.errors import FileError
from isentrope.system.figures import figure_of
from isentrope.system.file_contents import read_table
from isentrope.system.files import write_json
from isentrope.system.html_table import html_table
from isentrope.system.manifest import verify
from isentrope.system.one_line import one_line
from isentrope.system.reading import read_json

_ANSWERS = "isentrope.results.answers.every:ANSWERS"
"""The words of every kind of result, which know their classes."""


class Tables(Mapping[str, pd.DataFrame]):
    """The tables in a folder, by the names of their files; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self:
            raise KeyError(name)
        path = self.folder / f"{name}.parquet"
        return read_table(path, CURE, schema=table_schema(ROWS[name]), today=our_name)

    def __contains__(self, name: object) -> bool:
        return name in ROWS and (self.folder / f"{name}.parquet").is_file()

    def __iter__(self) -> Iterator[str]:
        return (name for name in sorted(ROWS) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


KINDS_OF_RESULTS: dict[str, type["Result"]] = {}
"""The kinds of results whose modules are imported, by the names of their verbs."""


@dataclass(frozen=True, kw_only=True)
class Result(Header):
    """What a verb found at one checkpoint.

    Attributes:
        warnings: Sentences on what limits the use of the numbers.
        timing: Seconds by stage, and "total".
        tables: Written as parquet, by name.
        save_more: Writes whatever else there is into the folder; None if nothing else is written.
        write_log: Called with the whole result and a folder for logs before its folder gets its
            name; returns the files that it wrote. None for no log.
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, arbitrary_types_allowed=True)
    verb: ClassVar[str] = ""
    absent: ClassVar[str] = ""

    warnings: tuple[str, ...] = ()
    timing: dict[str, FiniteFloat] = field(default_factory=dict)
    tables: Annotated[Mapping[str, pd.DataFrame], Field(exclude=True)] = field(
        default_factory=dict, compare=False, repr=False
    )
    save_more: Annotated[Callable[[Path], object] | None, Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )
    write_log: Annotated[Callable[[Any, Path], list[Path]] | None, Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    def __init_subclass__(cls, verb: Verb) -> None:
        """A result is that of a verb.

        Args:
            verb: The verb.
        """
        cls.verb = verb.name
        cls.absent = verb.absent
        KINDS_OF_RESULTS[verb.name] = cls

    @property
    def name(self) -> str:
        """Of the checkpoint, with the number of the update batch if there are several."""
        return item_name(self.policy.name, repeat_of(self.provenance.seeds) or 0)

    def sentences(self) -> list[Sentence]:
        """The answer in words: the same on the terminal, in a notebook and on the page."""
        return [*resolve_name(_ANSWERS)[self.verb].sentences(self)]

    @classmethod
    def printed(cls, results: Sequence[Self]) -> Printed:
        """Sentences, tables and lines of results of this verb, and what limits them."""
        return resolve_name(_ANSWERS)[cls.verb].blocks(results)

    def __repr__(self) -> str:
        return one_line(self, f"of {self.name}", *(x.text for x in self.sentences()))

    def _repr_html_(self) -> str:
        """Sentences and the first table, for a notebook."""
        sentences = [sentence.text for sentence in self.sentences()]
        for block in self.printed([self]):
            if isinstance(block, Table):
                titles = [column.title for column in block.columns]
                columns = [block.cells(column) for column in block.columns]
                return html_table(sentences, titles, [*zip(*columns, strict=True)], block.title)
        return html_table(sentences, [], [])

    def plot(self) -> Any:
        """The report's figure of the result.

        Returns:
            A matplotlib figure.

        Raises:
            LookupError: If the report has none; the sentence names the verbs that have one.
        """
        return figure_of(self)

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """A table of the result, with value, _se, _ci_low and _ci_high of a number in columns.

        Args:
            table: One of `tables`; None for that of the verb, such as the sweep of `measure`.

        Returns:
            The table.

        Raises:
            LookupError: If there is no such table.
        """
        name = table or VERBS[self.verb].table
        if name not in self.tables:
            names = ", ".join(self.tables) or "none"
            raise LookupError(f"This {type(self).__name__} has no table {name!r}; it has {names}.")
        return self.tables[name]

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
        if self.save_more is not None:
            self.save_more(folder)

    def as_saved(self) -> Self:
        """The result without its writers, and with them what it was computed from."""
        return replace(self, save_more=None, write_log=None)

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
        kinds = [kind for kind in KINDS_OF_RESULTS.values() if issubclass(kind, cls)]
        by_schema = {f"isentrope/{kind.verb}/1": kind for kind in kinds}
        verify(folder)
        path = folder / RESULTS
        try:
            content = read_json(path, CURE)
        except (FileNotFoundError, FileError) as error:
            raise ResultsError(str(error)) from error
        schema = str(content.get("schema"))
        if schema not in by_schema:
            raise ResultsError(
                f"{path}: its schema is {schema!r}, and it should be {' or '.join(by_schema)}."
            )
        result = replace(decode(by_schema[schema], content, path), tables=Tables(folder))
        repeat = repeat_of(result.provenance.seeds)
        if folder.name.startswith(f"{result.verb}_") and repeat is not None:
            require_own_name(folder, f"{result.verb}_{item_name(result.policy.name, repeat)}")
        return result


def item_name(checkpoint: str, repeat: int) -> str:
    """What results of a checkpoint are called: step_40, or step_40_repeat_2."""
    return f"{checkpoint}_repeat_{repeat}" if repeat else checkpoint
