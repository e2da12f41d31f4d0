"""A call of a verb: logs and libraries set up, and however it ends, one sentence says so.

0    done
1    refused, a check found something wrong, or a Python file of the user's failed: the sentence
     says what, and what to do
2    the command line is not understood
70   a fault of isentrope: the sentence says where the traceback is
129, 130, 143   stopped by SIGHUP, Ctrl-C, SIGTERM
141  nobody reads the output any more
"""

import logging
import math
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from rich.logging import RichHandler
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from isentrope.cli.call import Interrupted, settings
from isentrope.cli.console import err, out, show
from isentrope.commands.command import AsJson, Command, Conclusion
from isentrope.system.errors import IsentropeError
from isentrope.system.failures import ENDINGS, advice, os_error_number
from isentrope.system.log import hide_library_notes
from isentrope.system.manifest import NOT_VERIFIED, verification, verifying
from isentrope.system.memory import is_lack_of_memory
from isentrope.system.processes import (
    OtherProcessError,
    forget_frames,
    leave,
    lost_another,
    rank,
    speaks,
)
from isentrope.system.progress import Progress
from isentrope.system.python_file import find_line_of_file

EXPECTED = (IsentropeError, ValueError, OSError, RuntimeError, ImportError, SafetensorError)
"""Errors that are printed as their own sentence."""
FAULTS = (RecursionError, NotImplementedError)
"""Kinds of them that no user is to blame for."""
FAULT_STATUS = 70
PIPE_STATUS = 128 + int(getattr(signal, "SIGPIPE", 13))


def run(command: Command, notes: Iterable[logging.LogRecord] = ()) -> None:
    """Call a verb; end with one sentence where it does not succeed.

    With `--traceback`, and at `output.log_level=DEBUG`, the traceback is printed too.

    Args:
        command: The verb with its options.
        notes: What was logged when its input was read.

    Raises:
        Exit: With a status of the table above, or with the verb's own.
        Abort: If the user did not confirm.
        BadParameter: If an option is not understood.
    """
    _prepare_logs()
    verb = type(command)
    try:
        with (
            _one_sentence(verb),
            verification(not getattr(command, "no_verify", False)),
            out.first_screen(math.inf if command.details else verb.room),
        ):
            if not verifying():
                logging.getLogger("isentrope").warning(NOT_VERIFIED)
            for note in notes:
                logging.getLogger("isentrope").handle(note)
            with Progress(err, verb.name):
                outcome = command.run()
            failures: Sequence[str] = ()
            if rank() == 0:
                blocks = command.shown(outcome)
                if isinstance(command, AsJson) and command.as_json:
                    out.write_document(command.document(outcome))
                    show(err, (block for block in blocks if isinstance(block, Conclusion)))
                else:
                    show(out, blocks)
                failures = command.failures(outcome)
            for sentence in failures:
                err.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
            if failures:
                raise typer.Exit(1)
            sys.stdout.flush()
    except BaseException as error:  # raised again
        forget_frames(error)  # they hold models, and with them the group that is left
        raise
    finally:
        leave()


@contextmanager
def _one_sentence(verb: type[Command]) -> Generator[None]:
    """A block whose errors are printed as one sentence, and end the verb with a status."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):  # ways to end, not errors
        raise
    except KeyboardInterrupt as error:
        raise typer.Exit(_interrupted(verb, error)) from error
    except BrokenPipeError as error:
        _forget_output()
        raise typer.Exit(PIPE_STATUS) from error
    except ENDINGS:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        raise typer.Exit(_failed(verb, error)) from error


def _failed(verb: type[Command], error: BaseException) -> int:
    """Print the sentence of an error, and give its status."""
    if isinstance(error, OtherProcessError):
        return 1  # the process that failed says why
    if lost_another(error):
        _print_error("Another process has ended, and this one cannot go on: its message says why.")
        return 1
    trace = "".join(traceback.format_exception(error))
    shown = settings.traceback or logging.getLogger("isentrope").isEnabledFor(logging.DEBUG)
    if shown:
        err.print(trace, markup=False, highlight=False, soft_wrap=True)
    is_refusal = isinstance(error, IsentropeError)
    if not is_refusal and is_lack_of_memory(error):
        _print_error(
            "The memory is full: lower sampling.batch_size, sampling.max_tokens or the sizes of "
            "the batches."
        )
        return 1
    if is_refusal or (isinstance(error, EXPECTED) and not isinstance(error, FAULTS)):
        _print_error(verb.sentence_of(error))
        return 1
    if (number := os_error_number(error)) is not None:  # of a library without a class for it
        words = " ".join(str(error).split())
        _print_error(f"{verb.name} could not read or write ({words}): {advice(number)}.")
        return 1
    words = " ".join(str(error).split())[:300]
    cause = f"{type(error).__name__}{': ' if words else ''}{words}"
    where = "above" if shown else _kept(trace)
    if (line := find_line_of_file(error)) is not None:
        _print_error(f"{verb.name}: {line}, failed by {cause}. The traceback is {where}.")
        return 1
    _print_error(
        f"{verb.name} failed by {cause}. This is a fault of "
        f"isentrope: please report it with the traceback {where}."
    )
    return FAULT_STATUS


def _kept(trace: str) -> str:
    """Where a traceback was written."""
    try:
        handle, name = tempfile.mkstemp(prefix="isentrope-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(trace)
        return f"in {Path(name)}"
    except OSError:
        return "that `isentrope --traceback` prints"


def _interrupted(verb: type[Command], error: KeyboardInterrupt) -> int:
    """Print what is kept, and give the status."""
    if not isinstance(error, Interrupted):
        error = Interrupted(signal.SIGINT)
    notes = getattr(error, "__notes__", None) or [verb.kept]
    if speaks():
        _print(f"Stopped by {error.cause}. {notes[-1]}")
    return error.status


def _print_error(sentence: str) -> None:
    where = "" if speaks() else f"Process {os.environ['RANK']}: "
    _print(f"{where}Error: {sentence}")


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed
        err.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _forget_output() -> None:
    """Let nothing that is still to be flushed fail when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_logs() -> None:
    """Show our log; no bars for every file that is read, no notes to developers of libraries."""
    transformers_logging.disable_progress_bar()
    hide_library_notes()
    logger = logging.getLogger("isentrope")
    logger.setLevel("INFO")  # until a configuration says otherwise
    if not logger.handlers:
        handler = RichHandler(console=err, show_path=False, show_time=False)
        handler.setLevel("NOTSET" if speaks() else "ERROR")
        logger.addHandler(handler)
