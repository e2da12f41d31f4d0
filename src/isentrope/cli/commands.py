"""The table of commands: options, function, printer and help of each.

Functions are given by their names and imported when their verb is called, so that `--version` and
`--help` load no torch. Verbs that measure are rows of `results.verbs`.

Ctrl-C, SIGTERM and SIGHUP stop a verb: it cleans up, says what is kept, and ends with status
128 + n. The command line alone installs these handlers; the library leaves signals as they are. A
second signal ends the process at once.
"""

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature
from pkgutil import resolve_name as load
from typing import Any

import typer

from isentrope.cli import options
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
        help="Count what verbs take by shapes; exit status 1 if it is too much.",
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


_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}


class Interrupted(KeyboardInterrupt):
    """A signal has asked the verb to stop.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells expect."""
        return 128 + self.number

    @property
    def cause(self) -> str:
        """The name of the signal, as a user knows it."""
        return _NAMES[signal.Signals(self.number).name]


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise `Interrupted` in this block when a signal asks to stop; ignored signals stay so.

    Yields:
        Nothing.

    Raises:
        Interrupted: In the main thread, at the next step of Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    replaced = [n for n in numbers if before[n] not in (signal.SIG_IGN, None)]

    def stop(number: int, frame: Any) -> None:
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])


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
