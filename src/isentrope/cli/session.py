"""A call of a verb: logs and libraries set up, and its errors printed as one sentence."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import typer
from rich.logging import RichHandler
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from isentrope._lazy import load
from isentrope.cli.commands import Verb
from isentrope.cli.console import err

EXPECTED = (ValueError, OSError, RuntimeError, ImportError, SafetensorError)
"""Errors that are printed as a sentence. Any other is a fault of the library: a traceback."""


def run(verb: Verb, given: dict[str, Any]) -> None:
    """Call a verb; print what it refuses as one sentence, and exit with status 1.

    At `output.log_level=DEBUG` the traceback is printed too.

    Args:
        verb: Its row in the table.
        given: Values of its options.

    Raises:
        Exit: With status 1, if it refused; or with its own.
        Abort: If the user interrupted it.
    """
    _quieten_libraries()
    _show_log()
    try:
        load(verb.through)(verb, *verb.options(**given))
    except (typer.Exit, typer.Abort):  # ways to end, not errors, though RuntimeErrors
        raise
    except EXPECTED as error:
        logging.getLogger("isentrope").debug("raised here:", exc_info=error)
        sentence = " ".join(str(error).split()) or type(error).__name__
        err.print(f"Error: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _quieten_libraries() -> None:
    """No bars for every file that is read, no notes to developers of other libraries."""
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")


def _show_log() -> None:
    logger = logging.getLogger("isentrope")
    logger.setLevel("INFO")  # until a configuration says otherwise
    if not logger.handlers:
        handler = RichHandler(console=err, show_path=False, show_time=False)
        logger.addHandler(handler)
