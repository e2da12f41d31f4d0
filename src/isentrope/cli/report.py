"""`isentrope report RUN [OTHER]`: one page on what was measured, or two runs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from isentrope.cli.app import one_sentence, out


@one_sentence
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Another, to stand beside it.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="The one to show in full; the last measured.")
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="An evaluation of the run; repeatable."),
    ] = None,
) -> None:
    """Write report.html of a run: verdict, figures, checks, and where every number comes from."""
    from isentrope.reports.report import write_report

    made = write_report(run, other, checkpoint=checkpoint, evaluations=evaluation or ())
    for sentence in made.claims:
        out.print(f"- {sentence}", markup=False, highlight=False)
    if made.missing:
        out.print("\nNot in the report:", markup=False, highlight=False)
    for sentence in made.missing:
        out.print(f"- {sentence}", markup=False, highlight=False)
    out.print(f"\nWrote {made.page}", markup=False, highlight=False, soft_wrap=True)
