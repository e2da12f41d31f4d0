"""`isentrope check CONFIG`, or a checkpoint folder: can this checkpoint be measured?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from isentrope.cli.app import OutFolder, Overrides, err, one_sentence, out, overrides

ConfigOrCheckpoint = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="A YAML file of settings, or a checkpoint folder."),
]
MARKS = {True: "[green]ok[/green]", False: "[red]FAIL[/red]", None: "[dim]-[/dim]"}


@one_sentence
def check(config: ConfigOrCheckpoint, settings: Overrides = None, folder: OutFolder = None) -> None:
    """Check the instrument before measuring; exit status 1 if anything is wrong."""
    from isentrope.config.io import load_config
    from isentrope.pipelines.check import check as run_checks
    from isentrope.progress import Progress

    source = {"checkpoint": {"checkpoint_path": config}} if Path(config).is_dir() else config
    found = run_checks(load_config(source, overrides(settings, folder)), Progress(err))
    for name, findings in found.items():
        columns = ("", "check", "what was seen, and what to do")
        table = Table(*columns, title=name, title_justify="left")
        for finding in findings:
            advice = f"\n[bold]{escape(finding.advice)}[/bold]" if finding.advice else ""
            seen = escape(finding.detail) + advice
            table.add_row(MARKS[finding.passed], escape(finding.name), seen)
        out.print(table)
    broken = sum(f.passed is False for findings in found.values() for f in findings)
    if broken:
        err.print(f"{broken} checks failed.", style="red")
        raise typer.Exit(1)
    out.print("Fit to be measured.")
