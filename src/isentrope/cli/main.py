"""`isentrope`: every verb in one place. A new verb is a file that adds itself to the app."""

from __future__ import annotations

from typing import Annotated

import typer

from isentrope._version import __version__
from isentrope.cli import (
    audit,
    check,
    config,
    demo,
    evaluate,
    influence,
    kernel,
    measure,
    noise,
    report,
    sft,
    train,
    try_controls,
)
from isentrope.cli.app import app, out

__all__ = ["app"]

app.command(name="demo")(demo.demo)
app.command(name="sft")(sft.sft)
app.command(name="train")(train.train)
app.command(name="evaluate")(evaluate.evaluate)
app.command(name="measure")(measure.measure)
app.command(name="influence")(influence.influence)
app.command(name="kernel")(kernel.kernel)
app.command(name="noise")(noise.noise)
app.command(name="audit")(audit.audit)
app.command(name="try")(try_controls.try_controls)
app.command(name="check")(check.check)
app.command(name="report")(report.report)
app.add_typer(config.app, name="config")


def _print_version(asked: bool) -> None:
    if asked:
        out.print(f"isentrope {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options that come before a verb."""


if __name__ == "__main__":
    app()
