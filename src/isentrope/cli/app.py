"""The application that every verb adds itself to, and what the verbs have in common."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

app = typer.Typer(
    help="How much one optimizer step changes the entropy of a language-model policy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(width=None if sys.stdout.isatty() else 120)
"""Results; a file has room for a whole table."""
err = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
"""Progress, notes and errors."""

ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file of settings.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable."),
]
OutFolder = Annotated[
    str | None, typer.Option("--out", metavar="FOLDER", help="Run folder (output.directory).")
]

Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoints",
        metavar="PATTERN",
        help='Checkpoints to look at, as "run/training_state/*" in quotes; repeatable.',
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option("--repeats", min=1, help="Fresh update batches at each checkpoint."),
]


def overrides(
    settings: list[str] | None,
    folder: str | None,
    checkpoints: list[str] | None = None,
    repeats: int | None = None,
) -> list[str]:
    """The overrides that options make.

    Args:
        settings: Values of `--set`.
        folder: Value of `--out`.
        checkpoints: Values of `--checkpoints`.
        repeats: Value of `--repeats`.

    Returns:
        Settings as `load_config` takes them.
    """
    given = {
        "output.directory": folder,
        "checkpoint.checkpoint_path": checkpoints or None,
        "batch_config.repeats": repeats,
    }
    said = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    return [*(settings or ()), *said]


def one_sentence(command: Callable[..., Any]) -> Callable[..., Any]:
    """Print what a command refuses as one sentence, and exit with status 1.

    At `output.log_level=DEBUG` the traceback is printed too. What is not an expected kind of
    error is a fault of the library, and keeps its traceback.

    Args:
        command: A verb.

    Returns:
        The verb, wrapped.
    """

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from safetensors import SafetensorError

        _quieten_libraries()
        _show_log()
        expected = (ValueError, OSError, RuntimeError, ImportError, SafetensorError)
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort):  # ways to end, not errors, though RuntimeErrors
            raise
        except expected as error:
            logging.getLogger("isentrope").debug("raised here:", exc_info=error)
            sentence = " ".join(str(error).split()) or type(error).__name__
            err.print(
                f"Error: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True
            )
            raise typer.Exit(1) from error

    return wrapped


def _quieten_libraries() -> None:
    """No bars for every file that is read, no notes to developers of other libraries."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")


def _show_log() -> None:
    logger = logging.getLogger("isentrope")
    logger.setLevel("INFO")  # until a configuration says otherwise
    if not logger.handlers:
        handler = RichHandler(console=err, show_path=False, show_time=False)
        logger.addHandler(handler)
