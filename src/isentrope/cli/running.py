"""How each kind of verb is run: its settings read, its pipeline called, its results printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isentrope._lazy import load
from isentrope.cli.commands import Verb
from isentrope.cli.console import err, out, say, say_written
from isentrope.cli.options import Changes
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.pipelines.kinds import defaults, load_any
from isentrope.pipelines.loop import run_verb
from isentrope.processes import rank
from isentrope.progress import Progress

if TYPE_CHECKING:
    from isentrope.pipelines.sft import FineTuned
    from isentrope.reports.report import Report


def overrides(changes: Changes) -> list[str]:
    """Changes as texts."""
    values = [f"{key}={json.dumps(value)}" for key, value in changes.values.items()]
    return [*changes.texts, *values]


def measuring(verb: Verb, config: str, changes: Changes) -> None:
    """Measure, and print one table for all checkpoints."""
    asked = load_config(config, overrides(changes))
    draw = load("isentrope.reports.figures:entropy_change_figure")
    with Progress(err) as progress:
        run = load(verb.run)(asked, progress=progress, draw=draw)
    load(verb.show)(out, run.results)
    for made in run.measurements.values():
        say_written(made)


def attributing(verb: Verb, config: str, changes: Changes) -> None:
    """Analyse each checkpoint by influence, kernel, noise, audit or try, and print its tables."""
    asked, analyse = load_config(config, overrides(changes)), load(verb.run)
    with Progress(err) as progress:
        run = run_verb(verb.name, analyse, asked, progress)  # type: ignore[arg-type]
    for result, made in zip(run.results, run.measurements.values(), strict=True):
        load(verb.show)(out, result, made)
        say_written(made)


def evaluating(verb: Verb, config: str, changes: Changes) -> None:
    """Evaluate, and print a row per checkpoint and decoding."""
    asked = load_config(config, overrides(changes), EvaluateConfig)
    with Progress(err) as progress:
        made = load(verb.run)(asked, progress=progress)
    if rank() == 0:
        load(verb.show)(out, made.results)
        say_written(made.table)


def fine_tuning(verb: Verb, config: str, changes: Changes) -> None:
    """Fine-tune, and print the last loss and where the model is."""
    asked = load_config(config, overrides(changes), SftConfig)
    with Progress(err) as progress:
        made = load(verb.run)(asked, progress=progress)
    if rank() == 0:
        load(verb.show)(made)


def print_fine_tuned(made: FineTuned) -> None:
    """Print what fine-tuning made."""
    say(f"Loss of the last step: {made.loss:.4f} nats per token")
    say_written(made.model)


def training(verb: Verb, config: str | None, resume: str | None, changes: Changes) -> None:
    """Start or resume a run, and print its folder."""
    with Progress(err) as progress:
        if resume is not None:
            go_on = load("isentrope.pipelines.train:resume")
            made = go_on(resume, overrides(changes), progress=progress)
        else:
            asked = load_config(str(config), overrides(changes), TrainConfig)
            made = load(verb.run)(asked, progress=progress)
    if rank() == 0:
        load(verb.show)(made)


def checking(verb: Verb, config: str, changes: Changes) -> None:
    """Check, and print a table of findings per checkpoint."""
    source = {"checkpoint": {"checkpoint_path": config}} if Path(config).is_dir() else config
    with Progress(err) as progress:
        found = load(verb.run)(load_config(source, overrides(changes)), progress)
    load(verb.show)(out, err, found)


def reporting(
    verb: Verb, run: str, other: str | None, checkpoint: str | None, evaluations: Sequence[str]
) -> None:
    """Write a report, and print its verdict and what is missing."""
    load(verb.show)(load(verb.run)(run, other, checkpoint=checkpoint, evaluations=evaluations))


def print_report(made: Report) -> None:
    """Print the sentences of a report that was written."""
    for sentence in made.claims:
        out.print(f"- {sentence}", markup=False, highlight=False)
    if made.missing:
        out.print("\nNot in the report:", markup=False, highlight=False)
    for sentence in made.missing:
        out.print(f"- {sentence}", markup=False, highlight=False)
    out.print()
    say_written(made.page)


def demonstrating(verb: Verb, *sizes: Any) -> None:
    """Run every verb in turn, each with its own tables, and print three sentences."""
    with Progress(err) as progress:
        made = load(verb.run)(*sizes, progress)
    load(verb.show)(out, made)


def showing(verb: Verb, config: str | None, kind: Any, settings: Sequence[str]) -> None:
    """Print the settings as YAML, with what each does."""
    asked = load_any(config, settings) if config else defaults(kind or "measure", settings)
    text = load(verb.run)(asked, comments=True)
    load(verb.show)(text)


def print_text(text: str) -> None:
    """Print settings as they are."""
    out.print(text, end="", markup=False, highlight=False, soft_wrap=True)


def validating(verb: Verb, config: str, settings: Sequence[str]) -> None:
    """Print what a configuration would do."""
    asked = load(verb.run)(config, settings)
    out.print(f"{config} is valid: {load(verb.show)(asked)}.", highlight=False, soft_wrap=True)
