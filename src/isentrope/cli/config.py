"""`isentrope config show` and `isentrope config validate`."""

from __future__ import annotations

from typing import Annotated

import typer

from isentrope.cli.app import ConfigFile, Overrides, one_sentence, out

app = typer.Typer(help="Show or check settings.", no_args_is_help=True)


@app.command()
@one_sentence
def show(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file; left out: defaults.")
    ] = None,
    settings: Overrides = None,
) -> None:
    """Print every setting, its default or its value in CONFIG, and what it does."""
    from isentrope.experiments.config_io import dump_config, load_config

    defaults = {"checkpoint": {"checkpoint_path": "path/to/checkpoint"}}
    text = dump_config(load_config(config or defaults, settings or ()), comments=True)
    out.print(text, end="", markup=False, highlight=False, soft_wrap=True)


@app.command()
@one_sentence
def validate(config: ConfigFile, settings: Overrides = None) -> None:
    """Check CONFIG: its keys and values, and that the files it names are there."""
    from isentrope.experiments.config_io import load_config
    from isentrope.experiments.measure import require_inputs

    subjects = require_inputs(load_config(config, settings or ()))
    names = ", ".join(subject.name for subject in subjects)
    out.print(f"{config} is in order; it measures {names}.", highlight=False, soft_wrap=True)
