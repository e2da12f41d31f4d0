"""The findings of `isentrope check` as a table on the screen."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isentrope.checks import Finding

MARKS = {True: "[green]ok[/green]", False: "[red]FAIL[/red]", None: "[dim]-[/dim]"}


def print_findings(
    out: Console,
    err: Console,
    by_checkpoint: dict[str, list[Finding]],
    sound: str = "Can be measured.",
) -> None:
    """Print a table per checkpoint, and a sentence where no check failed.

    Raises:
        Exit: With status 1, if a check failed.
    """
    for name, findings in by_checkpoint.items():
        table = Table(title=name, title_justify="left")
        for column in ("", "check", "what was seen, and what to do"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            advice = f"\n[bold]{escape(finding.advice)}[/bold]" if finding.advice else ""
            seen = escape(finding.detail) + advice
            table.add_row(MARKS[finding.passed], escape(finding.name), seen)
        out.print(table)
    broken = sum(f.passed is False for findings in by_checkpoint.values() for f in findings)
    if broken:
        err.print(f"{broken} checks failed.", style="red")
        raise typer.Exit(1)
    out.print(sound)
