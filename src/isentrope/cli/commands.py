"""The table of commands: options, function, printer and help of each.

Functions are given by their names and imported when their verb is called, so that `--version` and
`--help` load no torch. Verbs that measure are rows of `results.verbs`.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from pkgutil import resolve_name as load
from typing import Any

import typer

from isentrope.cli import options
from isentrope.cli.interrupts import stopped_by_signals
from isentrope.results.verbs import VERBS


@dataclass(frozen=True)
class Command:
    """A row of the table.

    Attributes:
        name: As on the command line, and in names of folders.
        options: Those of the command line.
        through: A function of `cli.running`: called with the row and what is asked, it runs the
            verb and prints its results.
        help: A sentence.
        kept: What a signal leaves of its work, and how to go on.
        room: Lines of results on its first screen, besides conclusions.
    """

    name: str
    options: tuple[Parameter, ...]
    through: str
    help: str
    kept: str = "Nothing is kept of what was not finished: run the same command again."
    room: int = 21


COMMANDS = (
    Command(
        "demo",
        options.DEMONSTRATED,
        through="demonstrating",
        help="Train a toy policy, and see which tokens spend its entropy.",
        kept="What was finished is kept. Run it again with another --out.",
        room=9,
    ),
    Command(
        "sft",
        (*options.NEW_RUN, *options.CHANGES),
        through="training",
        help="Fine-tune a model on a task's demonstrations; or resume a run.",
    ),
    Command(
        "train",
        (*options.NEW_RUN, options.START, *options.CHANGES),
        through="training",
        help="Train by Dr. GRPO, with checkpoints to measure; or resume a run.",
        kept="No step of training is lost, since none was begun: run the same command again.",
    ),
    Command(
        "branch",
        options.BRANCHED,
        through="branching",
        help="Train on from checkpoints with changed settings, and compare.",
        kept="No branch was begun: run the same command again.",
    ),
    Command(
        "evaluate",
        (options.CONFIG, *options.CHANGES),
        through="evaluating_checkpoints",
        help="Evaluate checkpoints on a task: pass@k, lengths, entropy.",
        kept="Finished chunks of prompts are kept: run the same command again to go on.",
    ),
    *(
        Command(
            verb.name,
            options.MEASURED.get(verb, (options.CONFIG, *options.STUDY, *options.CHANGES)),
            through="measuring",
            help=verb.help,
        )
        for verb in VERBS.values()
    ),
    Command(
        "check",
        options.CHECKED,
        through="checking",
        help="Check that a checkpoint can be measured; exit status 1 if not.",
    ),
    Command(
        "plan",
        options.PLANNED,
        through="planning",
        help="Say what memory and time verbs take; exit status 1 if too much.",
    ),
    Command(
        "convert",
        options.CONVERTED,
        through="converting",
        help="Write a checkpoint of FSDP, verl or DeepSpeed as one to measure.",
    ),
    Command(
        "report",
        options.REPORTED,
        through="reporting",
        help="Write report.html of a run: verdict, figures, checks, sources.",
    ),
)

CONFIG_COMMANDS = (
    Command(
        "show",
        options.SHOWN,
        through="showing",
        help="Print every setting, its default or its value in CONFIG, and what it does.",
    ),
    Command(
        "validate",
        (options.CONFIG, options.SETTINGS),
        through="validating",
        help="Check CONFIG: its keys and values, and that the files it names are there.",
    ),
)


def add_to(app: typer.Typer, verbs: tuple[Command, ...]) -> None:
    """Add rows to an application."""
    for verb in verbs:
        app.command(name=verb.name, help=verb.help, short_help=verb.help)(_command(verb))


def _command(verb: Command) -> Callable[..., None]:
    """A function with the options of a verb as its signature, which calls it in a session."""

    def command(**given: Any) -> None:
        with stopped_by_signals():
            _import_session()
            load("isentrope.cli.session:run")(verb, given)

    command.__signature__ = Signature((*verb.options, options.DETAILS))  # type: ignore[attr-defined]
    return command


def _import_session() -> None:
    """Import the libraries, of which nothing is garbage: looking for it takes a second or two."""
    if "isentrope.cli.session" not in sys.modules:
        gc.disable()
        load("isentrope.cli.session:run")
        gc.freeze()
        gc.enable()
