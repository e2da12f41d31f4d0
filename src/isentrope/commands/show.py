"""`isentrope show` on the command line; `run.stored` reads, and results say their own words."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NoReturn

from typer import Argument

from isentrope.commands.command import AsJson, Command, Verified, command_line
from isentrope.results.verbs import MEASURE
from isentrope.system.errors import FileError
from isentrope.system.reading import require_directory

STORED_FOLDERS = (
    "give the folder of a result, such as RUN/measurements/measure_step_4, of a study or an "
    "evaluation, or a run folder"
)
"""What can be shown."""


@dataclass(frozen=True, kw_only=True)
class FromFolder(Command):
    """A verb that reads what another wrote."""

    folder: Annotated[
        str,
        Argument(metavar="FOLDER", help="Of a result, a study, an evaluation, or a run folder."),
    ]


@dataclass(frozen=True, kw_only=True)
class ShowStoredCommand(FromFolder, AsJson, Verified):
    """Print a stored result as its verb did; of a run, its contents."""

    name = "show"

    def read(self) -> None:
        """Look for the folder, and for what verbs leave in one."""
        from isentrope.run.places import holds_work

        require_directory(Path(self.folder), STORED_FOLDERS)
        if not holds_work(Path(self.folder)):
            self._refuse()

    def run(self) -> Any:
        """Read what is stored."""
        from isentrope.run.stored import read_stored

        self.read()
        stored = read_stored(Path(self.folder))
        if not (stored.results or stored.evaluated or stored.contents):
            self._refuse()
        return stored

    def _refuse(self) -> NoReturn:
        """Say that there is nothing to show, and where there is."""
        runs = sorted(Path(self.folder).glob("*/measurements"))
        newest = max(runs, key=lambda place: place.stat().st_mtime, default=None)
        where = "" if newest is None else f" The newest run in it is {newest.parent}."
        raise FileError(f"{self.folder} holds nothing to show: {STORED_FOLDERS}.{where}")

    def shown(self, outcome: Any) -> Iterator[Any]:
        """What the verbs printed; of a run a line per kind of content, and what to do next."""
        from isentrope.verbs.tables import printed_evaluation

        for kind, results in groupby(outcome.results, key=type):
            yield from kind.printed([*results])
        if outcome.evaluated:
            yield from printed_evaluation(outcome.evaluated)
        if outcome.contents:
            yield f"{outcome.folder} is a run, with"
            yield from (f"  {kind:<13}{words}" for kind, words in outcome.contents.items())
            yield from (f"Next: {line}" for line in _next_commands(outcome))

    def documents(self, outcome: Any) -> list[Any]:
        """The content of each results.json and metrics.json; of a run what it holds."""
        from isentrope.results.encode import encode

        if outcome.contents:
            return [outcome.contents]
        documents = [result.to_dict() for result in outcome.results]
        return documents + [encode(evaluation) for evaluation in outcome.evaluated]


def _next_commands(outcome: Any) -> Iterator[str]:
    """What shows or measures a run further."""
    from isentrope.training.run_files import RunFiles

    folder = outcome.folder
    if (folder / "measurements").is_dir():
        yield command_line("show", folder / "measurements")
    if "evaluation" in outcome.contents:
        yield command_line("show", folder / "evaluation")
    last = RunFiles(folder).latest()
    if last is not None:
        yield command_line(MEASURE.name, "CONFIG", "--checkpoints", last, "--out", folder)
    yield command_line("report", folder)
