"""How a verb is called: its input is read first, then it runs in a session; signals stop it.

On Ctrl-C, SIGTERM and SIGHUP a verb cleans up, says what is kept, and ends with status 128 + n. The
command line alone installs these handlers; the library leaves signals as they are. A second signal
ends the process at once.
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import typer

from isentrope.commands.command import Command, signature_of
from isentrope.commands.measuring import Measuring
from isentrope.system.errors import IsentropeError
from isentrope.system.extras import require_packages
from isentrope.system.log import log
from isentrope.system.manifest import verification
from isentrope.system.one_line import escape_controls

_SIGNALS = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}


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
        return _SIGNALS[signal.Signals(self.number).name]


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
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    replaced = [n for n in numbers if before[n] not in (signal.SIG_IGN, None)]

    def stop(number: int, frame: Any) -> None:
        for signum in replaced:
            signal.signal(signum, signal.SIG_DFL)
        raise Interrupted(number)

    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])
