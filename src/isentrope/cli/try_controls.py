"""`isentrope try CONTROL CONFIG`: what a control would do to the next step."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isentrope.cli.app import (
    Checkpoints,
    ConfigFile,
    OutFolder,
    Overrides,
    Repeats,
    one_sentence,
    overrides,
)

Control = Annotated[
    str,
    typer.Argument(
        metavar="CONTROL", help="Name of a control, several with commas, or all that act."
    ),
]
Strength = Annotated[
    list[float] | None,
    typer.Option("--strength", help="Multiple of the default strength; repeatable."),
]
Change = Annotated[
    float | None,
    typer.Option("--change", help="Look for the strength that changes entropy by this a step."),
]


@one_sentence
def try_controls(
    control: Control,
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    strength: Strength = None,
    change: Change = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Try controls on the step of a checkpoint: entropy and reward gained, before a run."""
    from isentrope.cli.attribute import attribute
    from isentrope.cli.trial_table import print_trial
    from isentrope.pipelines.trial import find_trial

    if strength and change is not None:
        raise ValueError("--change looks for the strength, so --strength cannot be given with it.")
    if strength and min(strength) <= 0:
        raise ValueError(f"--strength is a multiple above 0, got {min(strength):g}.")
    asked = overrides(settings, folder, checkpoints, repeats)
    names = None if control == "all" else control.split(",")
    for key, value in (("controls", names), ("strengths", strength), ("change", change)):
        if value is not None and value != []:
            asked.append(f"trial.{key}={json.dumps(value)}")
    attribute("try", find_trial, print_trial, config, asked)
