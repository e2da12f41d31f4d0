"""`isentrope report` on the command line; `reports.report` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.commands.command import Command, Conclusion, Verified
from isentrope.system.reading import require_directory


@dataclass(frozen=True, kw_only=True)
class Reported(Command):
    """A verb that reads what a run left."""

    run_folder: Annotated[str, Argument(metavar="RUN", help="A run folder.")]
    other: Annotated[
        str | None, Argument(metavar="[OTHER]", help="Another, to stand beside it.")
    ] = None
    checkpoint: Annotated[
        str | None, Option(metavar="NAME", help="The one to show in full; the last measured.")
    ] = None
    evaluations: Annotated[
        list[str] | None,
        Option("--evaluation", metavar="FOLDER", help="An evaluation of the run; repeatable."),
    ] = None
    out: Annotated[
        str | None, Option(metavar="FOLDER", help="Where the page goes; the run folder.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Reported, Verified):
    """Write report.html of a run: verdict, figures, checks, sources."""

    name = "report"

    def read(self) -> None:
        """Look for the folders of the runs."""
        for folder in filter(None, (self.run_folder, self.other)):
            require_directory(Path(folder), "give the directory of a run")

    def run(self) -> Any:
        """Write the page."""
        from isentrope.reports.report import write_report

        return write_report(
            self.run_folder,
            self.other,
            checkpoint=self.checkpoint,
            evaluations=self.evaluations or (),
            out=self.out,
        )

    def shown(self, outcome: Any) -> Iterator[Any]:
        """Its sentences, and what it lacks."""
        for title, sentences in (("", outcome.claims), ("\nNot in the report:\n", outcome.missing)):
            if sentences:
                yield title + "\n".join(f"- {sentence}" for sentence in sentences)
        yield ""
        yield Conclusion(f"Wrote {outcome.page}")
