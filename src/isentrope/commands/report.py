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

    run_folders: Annotated[
        list[str], Argument(metavar="RUN", help="A run folder, or several to compare.")
    ]
    checkpoint: Annotated[
        str | None, Option(metavar="NAME", help="The one to show in full; the last measured.")
    ] = None
    evaluations: Annotated[
        list[str] | None,
        Option("--evaluation", metavar="FOLDER", help="An evaluation of the run; repeatable."),
    ] = None

    def read(self) -> None:
        """Look for the folders of the runs, and for the evaluations that are named."""
        from isentrope.run.places import require_table

        for folder in self.run_folders:
            require_directory(Path(folder), "give the directory of a run")
        for evaluation in self.evaluations or ():
            require_table(Path(evaluation))


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Reported, Verified):
    """Write report.html of a run: verdict, figures, checks, sources."""

    name = "report"

    out: Annotated[
        str | None, Option(metavar="FOLDER", help="Where the page goes; the first run folder.")
    ] = None

    def read(self) -> None:
        """Refuse folders without anything to report, and a checkpoint that was not measured."""
        from isentrope.run.places import require_measured, require_reportable
        from isentrope.system.outputs import require_writable

        super().read()
        for folder in map(Path, self.run_folders):
            require_reportable(folder, self.evaluations or ())
            if self.checkpoint is not None:
                require_measured(folder, self.checkpoint)
        if self.out is not None:
            require_writable(self.out, "--out")

    def run(self) -> Any:
        """Write the page."""
        from isentrope.reports.report import write_report

        return write_report(
            *self.run_folders,
            checkpoint=self.checkpoint,
            evaluations=self.evaluations or (),
            out=self.out,
        )

    def shown(self, outcome: Any) -> Iterator[Any]:
        """Its sentences, and what it lacks."""
        for title, sentences in (
            ("", [*outcome.runs, *outcome.claims]),
            ("\nNot in the report:\n", outcome.missing),
        ):
            if sentences:
                yield title + "\n".join(f"- {sentence}" for sentence in sentences)
        yield ""
        yield Conclusion(f"Wrote {outcome.page}")
