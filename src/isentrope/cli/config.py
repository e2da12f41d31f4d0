"""`isentrope config show` and `isentrope config validate`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from isentrope.cli.app import ConfigFile, Overrides, one_sentence, out

app = typer.Typer(help="Show or check settings.", no_args_is_help=True)


@app.command()
@one_sentence
def show(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file; left out: defaults.")
    ] = None,
    kind: Annotated[
        Literal["measure", "evaluate", "sft", "train"] | None,
        typer.Option("--for", help="The verb whose defaults are shown; measure if left out."),
    ] = None,
    settings: Overrides = None,
) -> None:
    """Print every setting, its default or its value in CONFIG, and what it does."""
    from isentrope.config.io import dump_config
    from isentrope.pipelines.kinds import defaults, load_any

    if config is not None and kind is not None:
        raise ValueError(f"{config} says itself which verb it is for: leave --for away.")
    changes = settings or ()
    asked = load_any(config, changes) if config else defaults(kind or "measure", changes)
    text = dump_config(asked, comments=True)
    out.print(text, end="", markup=False, highlight=False, soft_wrap=True)


@app.command()
@one_sentence
def validate(config: ConfigFile, settings: Overrides = None) -> None:
    """Check CONFIG: its keys and values, and that the files it names are there."""
    from isentrope.pipelines.kinds import intention, load_any

    said = f"{config} is in order; {intention(load_any(config, settings or ()))}."
    out.print(said, highlight=False, soft_wrap=True)
