"""`isentrope`: the application, built from the table of verbs.

Help is plain text, which needs no rich.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from isentrope._version import __version__
from isentrope.cli.call import add_to, settings
from isentrope.cli.commands import COMMANDS, CONFIG_COMMANDS

MOVED = {"branch": "compare settings by `python -m studies.branches`, in a clone"}
"""Verbs of earlier versions, and what does their work now."""


class Verbs(TyperGroup):
    """Verbs whose flags are False if they are not given; Typer loads pydantic to convert None."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """The options of before, with defaults: `--help` and those that install completion."""
        options: list[Any] = super().get_params(ctx)  # type: ignore[arg-type]
        for option in options:
            if option.is_flag and option.default is None:
                option.default = False
        return options

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """The command that the arguments name; one that has moved says where to."""
        if args and args[0] in MOVED:
            ctx.fail(f"The verb '{args[0]}' is gone: {MOVED[args[0]]}.")
        return super().resolve_command(ctx, args)  # type: ignore[arg-type]


app = typer.Typer(
    cls=Verbs,
    help="How much one optimizer step changes the entropy of a language-model policy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(
    cls=Verbs, help="Show or check settings.", no_args_is_help=True, rich_markup_mode=None
)


__all__ = ["app"]


def _print_version(is_set: bool) -> None:
    if is_set:
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
