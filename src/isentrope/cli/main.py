"""`isentrope`: the application, built from the table of verbs."""

from typing import Annotated

import typer

from isentrope._version import __version__
from isentrope.cli.app import app, config_app, settings
from isentrope.cli.commands import COMMANDS, CONFIG_COMMANDS, add_to

__all__ = ["app"]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"isentrope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Print the traceback of an error too.")
    ] = False,
) -> None:
    """Options that come before a verb."""
    settings.traceback = traceback


add_to(app, COMMANDS)
add_to(config_app, CONFIG_COMMANDS)
app.add_typer(config_app, name="config")

if __name__ == "__main__":
    app()
