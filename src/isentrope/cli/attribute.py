"""What influence, kernel, noise and audit have in common: run the verb, show what it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from isentrope.cli.app import err, out
from isentrope.config.io import load_config
from isentrope.pipelines.loop import Analyse, Verb, run_verb
from isentrope.progress import Progress

Show = Callable[[Console, dict[str, Any], Path], None]


def attribute(verb: Verb, analyse: Analyse, show: Show, config: str, settings: list[str]) -> None:
    """Run a verb on every checkpoint and print its results and where they are.

    Args:
        verb: Its name.
        analyse: What it does at one checkpoint.
        show: Prints the content of one results.json; its folder comes with it.
        config: A YAML file.
        settings: Overrides.
    """
    run = run_verb(verb, analyse, load_config(config, settings), Progress(err))
    for result, made in zip(run.results, run.measurements.values(), strict=True):
        show(out, result, made)
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
