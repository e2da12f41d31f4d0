"""The verbs, in the order of the help, and the application's commands that are made of them.

A verb is a dataclass of `isentrope.commands`, which imports what it works with when it runs, so
that `--version` and `--help` load no torch.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import typer

from isentrope.cli.demo import DemoCommand
from isentrope.cli.signals import stopped_by_signals
from isentrope.commands.audit import AuditCommand
from isentrope.commands.check import CheckCommand
from isentrope.commands.command import Command, signature_of
from isentrope.commands.config import ShowCommand, ValidateCommand
from isentrope.commands.convert import ConvertCommand
from isentrope.commands.entropies import EntropiesCommand
from isentrope.commands.evaluate import EvaluateCommand
from isentrope.commands.influence import InfluenceCommand
from isentrope.commands.kernel import KernelCommand
from isentrope.commands.measure import MeasureCommand
from isentrope.commands.measuring import Measuring
from isentrope.commands.noise import NoiseCommand
from isentrope.commands.plan import PlanCommand
from isentrope.commands.report import ReportCommand
from isentrope.commands.sft import SftCommand
from isentrope.commands.show import ShowStoredCommand
from isentrope.commands.train import TrainCommand
from isentrope.commands.trial import TryCommand
from isentrope.commands.variance import VarianceCommand
from isentrope.commands.view import ViewCommand
from isentrope.system.errors import IsentropeError
from isentrope.system.extras import require_packages
from isentrope.system.log import log
from isentrope.system.manifest import verification
from isentrope.system.one_line import escape_controls

MEASURING: dict[str, type[Measuring]] = {
    verb.name: verb
    for verb in (
        MeasureCommand,
        InfluenceCommand,
        KernelCommand,
        NoiseCommand,
        VarianceCommand,
        AuditCommand,
        TryCommand,
        EntropiesCommand,
    )
}
"""Verbs that put a question to checkpoints, by name."""

COMMANDS: tuple[type[Command], ...] = (
    DemoCommand,
    SftCommand,
    TrainCommand,
    EvaluateCommand,
    *MEASURING.values(),
    CheckCommand,
    PlanCommand,
    ConvertCommand,
    ShowStoredCommand,
    ReportCommand,
    ViewCommand,
)

CONFIG_COMMANDS: tuple[type[Command], ...] = (ShowCommand, ValidateCommand)


@dataclass
class Settings:
    """Options that come before a verb.

    Attributes:
        traceback: Print the traceback of every error.
    """

    traceback: bool = False


settings = Settings()


def add_to(app: typer.Typer, verbs: Sequence[type[Command]]) -> None:
    """Add verbs to an application."""
    for verb in verbs:
        app.command(name=verb.name, help=verb.__doc__, short_help=verb.__doc__)(_command(verb))


def _command(verb: type[Command]) -> Callable[..., None]:
    """A function with the options of a verb as its signature, which calls it in a session."""

    def command(**options: Any) -> None:
        with stopped_by_signals():
            call = verb(**options)
            notes = _read(call)
            _import_session(verb)
            resolve_name("isentrope.cli.session:run")(call, notes)

    command.__signature__ = signature_of(verb)  # type: ignore[attr-defined]
    return command


def _read(call: Command) -> list[logging.LogRecord]:
    """Refuse what is wrong in the input before the libraries are imported, which takes seconds.

    An error that is no refusal ends the work too, which says it with its traceback. Processes of a
    group are left to the session, where one of them speaks.

    Returns:
        What was logged of the input, for the session to show: the work reads it no second time.

    Raises:
        Exit: With status 1, after the sentence.
    """
    if settings.traceback or "RANK" in os.environ:
        return []
    notes: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        notes.append(record)
        return False

    log.addFilter(keep)
    try:
        if call.packages:
            require_packages(call.packages, f"isentrope {call.name}")
        with verification(not getattr(call, "no_verify", False)):
            call.read()
    except (IsentropeError, ValueError, OSError) as error:
        typer.secho(escape_controls(f"Error: {call.sentence_of(error)}"), fg="red", err=True)
        raise typer.Exit(1) from error
    except Exception:  # a fault of isentrope, which the work meets again and says how to report
        return []
    finally:
        log.removeFilter(keep)
    return notes


def _import_session(verb: type[Command]) -> None:
    """Import the libraries, of which nothing is garbage: looking for it takes a second or two."""
    if "isentrope.cli.session" not in sys.modules:
        gc.disable()
        resolve_name("isentrope.cli.session:run")
        if issubclass(verb, Measuring):  # whose work loads most of them
            resolve_name("isentrope.verbs.loop:run_verb")
        gc.freeze()
        gc.enable()
